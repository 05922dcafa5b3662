"""A strategy as code: one PyTorch script for the user's own data, without vitprof.

`scripts/array.py` is such a script, whole: it runs as it is. Each other file there says what
differs from the one that it imports. `script(config)` returns the one of the strategy's loader and
storage, with its constants set and with a line about where they come from. A constant whose comment
says "one of a, b" is for those values only; what no script has a constant for is refused.

A constant and its comment are one line: they are read by `CONSTANT`, line by line.
"""

import ast
import re
import textwrap
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from vitprof.config import RunConfig, strategies
from vitprof.config.parts import LOADERS, STORAGES, TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.datasets import catalog
from vitprof.errors import ConfigError
from vitprof.export.code.source import (
    FORMS,
    Import,
    Needed,
    closure,
    import_lines,
    lines_of,
    name_defined,
    names_in,
    names_of,
)
from vitprof.forms import module_name

FOLDER = Path(__file__).with_name("scripts")
WITHOUT: dict[str, dict[str, Any]] = {
    "samples": {"LOADER": "dataloader", "STORAGE": "imagefolder"},
    "array": {},
    "hdf5": {},
    "pt": {},
    "rows": {},
    "chunks": {},
    "lmdb": {},
    "pt_files": {},
    "files": {"LOADER": "dataloader"},
    "encoded": {"LOADER": "dataloader"},
    "threads": {"STORAGE": "files"},
    "dali": {"LOADER": "dali", "STORAGE": "files"},
}
"""Script -> what it does where it has no constant for it, besides `USUAL`."""
USUAL: dict[str, Any] = {"SHUFFLE": "full", "AUGMENT": "off", "CACHE_MB": 0, "LOCATION": "disk"}
CONSTANT = re.compile(r"^([A-Z_]+) = (.*?)(?:  # (.*))?$", re.MULTILINE)
"""A line of a script that sets a constant: its name, its value and the comment behind it."""
ONE_OF = re.compile(r"one of ([^;]+)")
WIDTH = 120
"""Characters in a line of a script's docstring."""


def script(config: RunConfig, found: str = "", run_id: int | None = None) -> str:
    """Returns a Python script that loads the user's own data as the strategy of `config` does, and
    trains on them.

    It needs PyTorch and what the strategy needs, nothing of vitprof. `python script.py DATA` trains
    a stand-in for the user's model, `python script.py --demo` does so on a few random images.
    `found` is what was measured, such as "1,234 samples/s while training", and `run_id` the run in
    which it was measured; the script's docstring has both. Raises `ConfigError` for a config that
    cannot run, or for which there is no script.
    """
    config = resolve(config)
    for field in ("replay", "inject"):
        value = getattr(config, field)
        if value:
            raise ConfigError(
                field, value, "there is no script for what only measures; leave it out"
            )
    values = _constants(config, catalog.dataset_info(config.dataset, config.n_images))
    name = _script_for(config, values)
    first, rest = whole(name, _form_of(name, values["STORAGE"])).split("\n", 1)
    filled = CONSTANT.sub(lambda line: _filled(line, values), rest)
    return f"{first}\n\n{_provenance(config, found, run_id)}\n{filled}"


CONSTANTS = 0
PARTS = 1
LOADING = 2
"""Sections of a script: its constants, functions and classes, and what begins with `make_loader`."""


class Source(NamedTuple):
    """A file of `scripts/` on top of those that it imports from."""

    docstring: str
    imports: dict[str, Import]
    """By the name that is bound: the module, and what of it; "" and the module for a plain
    import."""
    sections: list[dict[str, str]]
    """The text of each statement by the name that it defines, in `CONSTANTS`, `PARTS` and
    `LOADING`."""
    own: set[str]
    """The names that the file itself defines."""


IN_FORMS = {
    name: part.in_form for name, part in STORAGES.items() if part.in_form and part.form == "encoded"
}
"""Storage of encoded images -> its form. They have one script, with the form's `Reader` and
`Writer`."""
OF_ANY_FORM = "encoded"
"""That script."""


def _form_of(name: str, storage: str) -> str:
    """Returns the form whose code a script gets; "": the one that it has."""
    return IN_FORMS[storage] if name == OF_ANY_FORM else ""


@cache
def whole(name: str, form: str = "") -> str:
    """Returns a script of `scripts/` with what it needs of those that it imports from.

    `form`: the one whose code it gets in place of that which it names; "": the latter.
    """
    source = _source(name, form)
    defined = {key: text for section in source.sections for key, text in section.items()}
    # What the file has itself, and statements without a name, such as `if __name__ == "__main__"`;
    # then what these use, and what that uses.
    needed = closure(defined, source.own | {key for key in defined if not key.isidentifier()})
    used = set[str]().union(*(names_in(defined[key]) for key in needed))
    constants, *parts = (
        [text for key, text in section.items() if key in needed] for section in source.sections
    )
    body = "\n\n\n".join(["\n".join(constants), *chain(*parts)])
    imports = import_lines([source.imports[name] for name in used & source.imports.keys()])
    return f'"""{source.docstring}"""\n\n{imports}\n\n{body}\n'


@cache
def _source(name: str, form: str = "") -> Source:
    """Reads a file of `scripts/`, and those that it imports from."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree, clean=False) or ""
    imports = dict[str, Import]()
    sections = [dict[str, str](), {}, {}]
    own = [dict[str, str](), {}, {}]
    of_forms = Needed()
    section = CONSTANTS
    for node in tree.body[1:]:
        module = (isinstance(node, ast.ImportFrom) and node.module) or ""
        if module.startswith(__name__):
            base = _source(module.rpartition(".")[2])
            # The first line is the file's own, the others are as in the base.
            docstring += base.docstring[base.docstring.index("\n") :]
            imports |= base.imports
            sections = base.sections
        elif isinstance(node, ast.ImportFrom) and module.startswith(FORMS):
            if form:
                module = module_name(form)
            of_forms.add(module, [alias.name for alias in node.names])
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= names_of(node)
        else:
            constant = isinstance(node, ast.Assign)
            key = name_defined(node)
            # Constants come first; the first statement that is none begins the parts.
            if key == "make_loader":
                section = LOADING
            elif section == CONSTANTS and not constant:
                section = PARTS
            own[section][key] = lines_of(node, lines)
    merged = [_merged(*pair) for pair in zip(sections, own, strict=True)]
    # These use nothing of the scripts.
    merged[PARTS] = of_forms.texts | merged[PARTS]
    return Source(docstring, imports | of_forms.imports, merged, set(chain(*own)))


def _merged(base: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """Returns both, with what only `own` has at the end, or after what comes before it there."""
    order = list(base)
    place = len(order)
    for key in own:
        if key not in base:
            order.insert(place, key)
        place = order.index(key) + 1
    return {key: own.get(key, base.get(key, "")) for key in order}


def _constants(config: RunConfig, info: catalog.DatasetInfo) -> dict[str, Any]:
    """Returns the value of every constant that a script may have."""
    storage = config.storage
    if storage == "idx":
        # The user's own data are a folder of images.
        storage = "imagefolder"
    location = config.location
    if location == "slow-drive":
        # vitprof throttles the drive; the script reads it as it is.
        location = "disk"
    # As `engine.transforms` does it: photos are cropped, small pictures are moved. Photos have been
    # cropped once already, so augmentation on the device leaves more of them than usual.
    if info.kind == "jpeg":
        on_the_cpu = "crop"
        min_area = 0.35
        shift = 0
    else:
        on_the_cpu = "shift"
        min_area = 1
        shift = 2
    augmented = {"off": "off", "cpu": on_the_cpu, "device": "device"}
    return {
        "STORAGE": storage,
        "LOADER": config.loader,
        "LOCATION": location,
        "TRANSFER": config.transfer,
        "AUGMENT": augmented[config.augment or "off"],
        "SHUFFLE": config.shuffle or "full",
        "DECODER": config.decoder,
        "CACHE_MB": config.cache_mb or 0,
        "SIZE": info.image_size,
        "INPUT_SIZE": config.image_size,
        "MEAN": info.mean,
        "STD": info.std,
        "MIN_AREA": min_area,
        "SHIFT": shift,
        "FLIP": info.flips,
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
    """Returns the name of the script that does what `values` say.

    Raises `ConfigError` if none does.
    """
    obstacles = {name: _obstacles(name, values) for name in WITHOUT}
    # The storage and the loader first, as they are in `values`: the script is that of what differs
    # last.
    order = list(values)

    def closeness(name: str) -> list[int]:
        if not obstacles[name]:
            return [-len(order)]
        return [-order.index(constant) for constant, _ in obstacles[name]]

    best = min(obstacles, key=closeness)
    if not obstacles[best]:
        return best
    constant, allowed_values = obstacles[best][0]
    field = constant.lower()
    with_parts = f"loader {config.loader} over storage {config.storage}"
    allowed = f"there is no script for it with {with_parts}; choose {' or '.join(allowed_values)}"
    raise ConfigError(field, getattr(config, field), allowed)


def _obstacles(name: str, values: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Returns the constants whose values a script does not allow, each with those that it allows."""
    allowed: dict[str, list[str]] = {
        constant: [str(value)] for constant, value in (USUAL | WITHOUT[name]).items()
    }
    for line in CONSTANT.finditer(whole(name)):
        allowed[line[1]] = _choices(line[3] or "")
    if name == OF_ANY_FORM:
        allowed["STORAGE"] = list(IN_FORMS)
    # A constant without "one of" may have any value.
    return [
        (constant, allowed[constant])
        for constant, value in values.items()
        if allowed.get(constant) and str(value) not in allowed[constant]
    ]


def _choices(comment: str) -> list[str]:
    without_notes = re.sub(r" \([^)]*\)", "", comment)
    listed = ONE_OF.search(without_notes)
    return listed[1].split(", ") if listed else []


def _filled(line: re.Match[str], values: dict[str, Any]) -> str:
    """Returns a line that sets a constant, with the constant's value of `values`."""
    name = line[1]
    comment = line[3]
    if name not in values:
        return line[0]
    value = values[name]
    if name == "STORAGE" and value in IN_FORMS:
        # The script has the code of this one alone.
        comment = f"one of {value}"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    if not comment:
        return f"{name} = {text}"
    return f"{name} = {text}  # {comment}"


def _provenance(config: RunConfig, found: str, run_id: int | None) -> str:
    """Returns where the constants come from, for the script's docstring."""
    made = "Made by vitprof"
    if run_id is not None:
        made += f" from run {run_id}"
    storage = STORAGES[config.storage or ""].title
    loader = LOADERS[config.loader or ""].title
    transfer = TRANSFERS[config.transfer or ""].title
    copies = {"ram-disk": "copied to a RAM disk", "staged": "copied to the local disk first"}
    parts = ", ".join(filter(None, (storage, copies.get(config.location or ""), loader, transfer)))
    measured = f"with settings for the data set {config.dataset}"
    figure = found.strip().rstrip(".")
    if found.strip():
        measured = f"measured on the data set {config.dataset}: {figure}"
        if config.simulated:
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
    # On one line each, without what could end the docstring around them.
    quoted = (" ".join(line.replace("\\", "/").replace('"""', "'''").split()) for line in lines)
    return "\n\n".join("\n".join(textwrap.wrap(line, WIDTH)) for line in quoted)
