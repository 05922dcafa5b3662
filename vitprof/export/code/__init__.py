"""A strategy as code: one PyTorch script for the user's own data, without vitprof. `scripts/array.py` is such a script,
whole; each other file there says what differs from the one that it imports. `script(config)` returns the strategy's,
with its constants set. A constant whose comment says "one of a, b" is for those values only; what no script has a
constant for is refused.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterable
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from vitprof.config import RunConfig, catalog, strategies
from vitprof.config.parts import LOADERS, STORAGES, TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError

FOLDER = Path(__file__).with_name("scripts")
WITHOUT: dict[str, dict[str, Any]] = {
    "samples": {"LOADER": "dataloader", "STORAGE": "imagefolder"},
    "array": {},
    "rows": {},
    "files": {"LOADER": "dataloader"},
    "threads": {"STORAGE": "files"},
    "dali": {"LOADER": "dali", "STORAGE": "files"},
}
"""Script -> what it does where it has no constant for it, besides `USUAL`."""
USUAL: dict[str, Any] = {"SHUFFLE": "full", "AUGMENT": "off", "CACHE_MB": 0, "LOCATION": "disk"}
CONSTANT = re.compile(r"^([A-Z_]+) = (.*?)(?:  # (.*))?$", re.MULTILINE)
ONE_OF = re.compile(r"one of ([^;]+)")
WIDTH = 120


def script(config: RunConfig, found: str = "", run_id: int | None = None) -> str:
    """Returns a Python script that loads the user's own data as the strategy of `config` does, and trains on them;
    `--demo` does so on a few random images. `found` is what was measured, such as "1,234 samples/s while training", in
    the run `run_id`: the docstring has both. Raises `ConfigError` for a config without a script.
    """
    config = resolve(config)
    for field in ("replay", "inject"):
        if value := getattr(config, field):
            raise ConfigError(
                field, value, "there is no script for what only measures; leave it out"
            )
    values = _constants(config, catalog.dataset_info(config.dataset, config.n_images))
    first, rest = whole(_script_for(config, values)).split("\n", 1)
    filled = CONSTANT.sub(lambda line: _filled(line, values), rest)
    return f"{first}\n\n{_provenance(config, found, run_id)}\n{filled}"


class Source(NamedTuple):
    """A file of `scripts/` on top of those that it imports from."""

    docstring: str
    imports: dict[str, tuple[str, str]]
    """By the name that is bound: the module, and what of it; "" and the module for a plain import."""
    sections: list[dict[str, str]]
    """The text of each statement by the name that it defines: constants, parts, and from `make_loader` on."""
    own: set[str]
    """The names that the file itself defines."""


@cache
def whole(name: str) -> str:
    """Returns a script of `scripts/` with what it needs of those that it imports from."""
    source = _source(name)
    defined = {key: text for section in source.sections for key, text in section.items()}
    names = source.own | {key for key in defined if not key.isidentifier()}
    needed = set[str]()
    while names:
        needed |= names
        trees = [ast.parse(defined[key]) for key in names & defined.keys()]
        names = {
            node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)
        } - needed
    constants, *parts = (
        [text for key, text in section.items() if key in needed] for section in source.sections
    )
    body = "\n\n\n".join(["\n".join(constants), *chain(*parts)])
    imports = import_lines([source.imports[name] for name in needed & source.imports.keys()])
    return f'"""{source.docstring}"""\n\n{imports}\n\n{body}\n'


@cache
def _source(name: str) -> Source:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree, clean=False) or ""
    imports = dict[str, tuple[str, str]]()
    sections = [dict[str, str](), {}, {}]
    own = [dict[str, str](), {}, {}]
    section = 0
    for node in tree.body[1:]:
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith(__name__):
            base = _source(module.rpartition(".")[2])
            docstring += base.docstring[base.docstring.index("\n") :]
            imports |= base.imports
            sections = base.sections
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= names_of(node)
        else:
            constant = isinstance(node, ast.Assign) and ast.unparse(node.targets[0])
            key = constant or getattr(node, "name", "") or ast.unparse(node)
            section = 2 if key == "make_loader" else section or int(not constant)
            first = min(of.lineno for of in [node, *getattr(node, "decorator_list", [])])
            own[section][key] = "\n".join(lines[first - 1 : node.end_lineno])
    merged = [_merged(*pair) for pair in zip(sections, own, strict=True)]
    return Source(docstring, imports, merged, set(chain(*own)))


def _merged(base: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """Both, with what only `own` has after what comes before it there."""
    order = list(base)
    place = 0
    for key in own:
        if key not in base:
            order.insert(place, key)
        place = order.index(key) + 1
    return {key: own.get(key, base.get(key, "")) for key in order}


def names_of(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str]]:
    """Returns, by the name that is bound, the module, and what of it; "" and the module for a plain import."""
    of = (isinstance(node, ast.ImportFrom) and node.module) or ""
    return {alias.asname or alias.name: (of, ast.unparse(alias)) for alias in node.names}


def import_lines(imports: Iterable[tuple[str, str]]) -> str:
    """As ruff sorts them: the standard library apart, and plain imports first."""
    lines = list[str]()
    for module, names in groupby(sorted(imports), key=lambda pair: pair[0]):
        if module:
            lines.append(f"from {module} import {', '.join(name for _, name in names)}")
        else:
            lines += [f"import {name}" for _, name in names]

    def third_party(line: str) -> bool:
        return re.split(r"\W", line)[1] not in sys.stdlib_module_names

    lines.sort(key=lambda line: (third_party(line), line.startswith("from"), line.lower()))
    return "\n\n".join("\n".join(group) for _, group in groupby(lines, key=third_party))


def _constants(config: RunConfig, info: catalog.DatasetInfo) -> dict[str, Any]:
    jpeg = info.kind == "jpeg"
    chunk = 2**20 // (info.image_size**2 * info.channels)
    augmented = {"off": "off", "cpu": "crop" if jpeg else "shift", "device": "device"}
    return {
        "STORAGE": "imagefolder" if config.storage == "idx" else config.storage,
        "LOADER": config.loader,
        "LOCATION": "disk" if config.location == "slow-drive" else config.location,
        "TRANSFER": config.transfer,
        "AUGMENT": augmented[config.augment or "off"],
        "SHUFFLE": config.shuffle or "full",
        "DECODER": config.decoder,
        "CACHE_MB": config.cache_mb or 0,
        "SIZE": info.image_size,
        "INPUT_SIZE": config.image_size,
        "MEAN": info.mean,
        "STD": info.std,
        "MIN_AREA": 0.35
        if jpeg
        else 1,  # as `engine.transforms` does it: photos have been cropped once
        "SHIFT": 0 if jpeg else 2,
        "FLIP": info.flips,
        "BLOCK": max(1, min(256, chunk)) if config.storage == "hdf5-chunked" else 128,
        "WORKERS": config.workers or 0,
        "PREFETCH": config.prefetch_factor,
        "PERSISTENT": config.persistent_workers,
        "START_METHOD": config.start_method,
        "PIN_MEMORY": config.pin_memory,
        "BATCH_SIZE": config.batch_size,
        "LEARNING_RATE": config.lr,
        "SEED": config.seed,
        "AUTOCAST": {"bf16": "bfloat16", "fp16": "float16"}.get(config.precision),
        "MATMUL": "high" if config.precision == "tf32" else "highest",
        "COMPILE": (config.compile_mode or "default") if config.compile else None,
        "FUSED": config.fused_optimizer or None,
        "CUDNN_BENCHMARK": config.cudnn_benchmark,
    }


def _script_for(config: RunConfig, values: dict[str, Any]) -> str:
    obstacles: dict[str, list[tuple[str, list[str]]]] = {}
    for name, without in WITHOUT.items():
        choices = {
            line[1]: _choices(line[3] or "") or None for line in CONSTANT.finditer(whole(name))
        }
        of_name: dict[str, list[str] | None] = {
            key: [str(value)] for key, value in (USUAL | without).items()
        }
        of_name |= choices
        limits = ((key, of_name.get(key)) for key in values)
        obstacles[name] = [
            (key, of) for key, of in limits if of is not None and str(values[key]) not in of
        ]
    # the storage and the loader first, as they are in `values`: the script is that of what differs last
    order = list(values)
    best = min(
        obstacles,
        key=lambda name: [-order.index(key) for key, _ in obstacles[name]] or [-len(order)],
    )
    if not obstacles[best]:
        return best
    constant, allowed_values = obstacles[best][0]
    field = constant.lower()
    with_parts = f"loader {config.loader} over storage {config.storage}"
    allowed = f"there is no script for it with {with_parts}; choose {' or '.join(allowed_values)}"
    raise ConfigError(field, getattr(config, field), allowed)


def _choices(comment: str) -> list[str]:
    listed = ONE_OF.search(re.sub(r" \([^)]*\)", "", comment))
    return listed[1].split(", ") if listed else []


def _filled(line: re.Match[str], values: dict[str, Any]) -> str:
    if line[1] not in values:
        return line[0]
    value = values[line[1]]
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return f"{line[1]} = {text}" + (f"  # {line[3]}" if line[3] else "")


def _provenance(config: RunConfig, found: str, run_id: int | None) -> str:
    made = "Made by vitprof" + (f" from run {run_id}" if run_id is not None else "")
    storage = STORAGES[config.storage or ""].title
    loader = LOADERS[config.loader or ""].title
    transfer = TRANSFERS[config.transfer or ""].title
    copies = {"ram-disk": "copied to a RAM disk", "staged": "copied to the local disk first"}
    parts = ", ".join(filter(None, (storage, copies.get(config.location or ""), loader, transfer)))
    on = f"the data set {config.dataset}"
    measured = (
        f"measured on {on}: {found.strip().rstrip('.')}"
        if found.strip()
        else f"with settings for {on}"
    )
    if found.strip() and config.simulated:
        measured += f", on a simulated device ({config.device}), not on a real one"
    lines = [f"{made}: strategy {strategies.strategy(config.strategy).name} ({parts}), {measured}."]
    if config.location == "slow-drive":
        lines.append(
            "vitprof throttled the drive to simulate a slow one; this script reads DATA wherever it is."
        )
    if config.skip_unreadable:
        lines.append(
            "vitprof skipped samples that cannot be read; this script stops at the first one."
        )
    # on one line each, without what could end the docstring around them
    quoted = (" ".join(line.replace("\\", "/").replace('"""', "'''").split()) for line in lines)
    return "\n\n".join("\n".join(textwrap.wrap(line, WIDTH)) for line in quoted)
