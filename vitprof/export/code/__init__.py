"""A strategy as code: one PyTorch script for the user's own data, without vitprof. Each file of `scripts/` is such a
script, whole; `script(config)` returns the strategy's, with its constants set. A constant whose comment says "one of a,
b" is for those values only; what no script has a constant for is refused.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from vitprof.config import RunConfig, accelerators, catalog, strategies
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
            raise ConfigError(field, value, "there is no script for what only measures; leave it out")
    values = _constants(config, catalog.dataset_info(config.dataset, config.n_images))
    name = _script_for(config, values)
    first, rest = _text(name).split("\n", 1)
    filled = CONSTANT.sub(lambda line: _filled(line, values), rest)
    return f"{first}\n\n{_provenance(config, found, run_id)}\n{filled}"


@cache
def _text(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def _constants(config: RunConfig, info: catalog.DatasetInfo) -> dict[str, Any]:
    jpeg, chunk = info.kind == "jpeg", 2**20 // (info.image_size**2 * info.channels)
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
        "MIN_AREA": 0.35 if jpeg else 1,  # as `engine.transforms` does it: photos have been cropped once
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
        choices = {line[1]: _choices(line[3] or "") or None for line in CONSTANT.finditer(_text(name))}
        allowed: dict[str, list[str] | None] = {key: [str(value)] for key, value in (USUAL | without).items()}
        allowed |= choices
        obstacles[name] = [
            (key, of) for key in values if (of := allowed.get(key)) is not None and str(values[key]) not in of
        ]
    # the storage and the loader first, as they are in `values`: the script is that of what differs last
    order = list(values)
    best = min(obstacles, key=lambda name: [-order.index(key) for key, _ in obstacles[name]] or [-len(order)])
    if not obstacles[best]:
        return best
    constant, allowed_values = obstacles[best][0]
    field = constant.lower()
    with_parts = f"loader {config.loader} over storage {config.storage}"
    raise ConfigError(
        field,
        getattr(config, field),
        f"there is no script for it with {with_parts}; choose {' or '.join(allowed_values)}",
    )


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
    storage, loader = STORAGES[config.storage or ""].title, LOADERS[config.loader or ""].title
    transfer = TRANSFERS[config.transfer or ""].title
    copies = {"ram-disk": "copied to a RAM disk", "staged": "copied to the local disk first"}
    parts = ", ".join(filter(None, (storage, copies.get(config.location or ""), loader, transfer)))
    on = f"the data set {config.dataset}"
    measured = f"measured on {on}: {found.strip().rstrip('.')}" if found.strip() else f"with settings for {on}"
    if found.strip() and accelerators.is_simulated(config.device):
        measured += f", on a simulated device ({config.device}), not on a real one"
    lines = [f"{made}: strategy {strategies.strategy(config.strategy).name} ({parts}), {measured}."]
    if config.location == "slow-drive":
        lines.append("vitprof throttled the drive to simulate a slow one; this script reads DATA wherever it is.")
    if config.skip_unreadable:
        lines.append("vitprof skipped samples that cannot be read; this script stops at the first one.")
    # on one line each, without what could end the docstring around them
    quoted = (" ".join(line.replace("\\", "/").replace('"""', "'''").split()) for line in lines)
    return "\n\n".join("\n".join(textwrap.wrap(line, WIDTH)) for line in quoted)
