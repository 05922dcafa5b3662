"""Parts of other packages, by their entry points `vitprof.storages`, `vitprof.loaders` and
`vitprof.transfers`.

Each is a module that imports no PyTorch. It has its part (`STORAGE`, a `StoragePart`; `LOADER`, a
`LoaderPart`; `TRANSFER`, a `Part`), `STRATEGIES` with it, and `OPENER`, "package.module:name". A storage's
opener is as `engine.storage.StorageCode` has it, with `FORMAT` too; a loader's takes what
`engine.loaders.open_loader` does, a transfer's the device.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pkgutil import resolve_name
from typing import Any

from vitprof.errors import ConfigError, one_line

KINDS = {"storages": "STORAGE", "loaders": "LOADER", "transfers": "TRANSFER"}
"""What an entry point's group ends with -> the name of the part in its module."""
OWN = (
    metadata.EntryPoint("litdata", "vitprof.config.optional_parts", "vitprof.storages"),
    metadata.EntryPoint("spdl", "vitprof.config.optional_parts:Spdl", "vitprof.loaders"),
)
"""Those of vitprof's own, as pyproject.toml has them: a checkout that is not installed has no metadata."""
Plugged = dict[str, dict[str, tuple[str, ...]]]
"""For each of `KINDS`, the opener of each part by the part's name, and of a storage its format."""


def added(parts: Mapping[str, dict[str, Any]], strategies: dict[str, Any]) -> Plugged:
    """Adds what other packages bring to `parts`, for each of `KINDS`, and to the strategies; returns it.

    A package that cannot be used is left out, with a line on standard error.
    """
    plugged: Plugged = {kind: {} for kind in KINDS}
    points = list(OWN)
    for kind in KINDS:
        points += metadata.entry_points(group=f"vitprof.{kind}")
    # an installed vitprof has its own twice
    for point in dict.fromkeys(points):
        kind = point.group.removeprefix("vitprof.")
        try:
            plugin = point.load()
            part = getattr(plugin, KINDS[kind])
            plans = {each.name: each for each in plugin.STRATEGIES}
            clashes = [
                name for name, plan in plans.items() if strategies.get(name, plan) is not plan
            ]
            if part.name in parts[kind]:
                clashes.append(part.name)
            if clashes:
                raise ConfigError("name", clashes[0], "there is one of that name already")
            if kind == "storages":
                plugged[kind][part.name] = (plugin.OPENER, plugin.FORMAT)
            else:
                plugged[kind][part.name] = (plugin.OPENER,)
            parts[kind][part.name] = part
            strategies |= plans
        except Exception as error:  # of any package
            sys.stderr.write(
                f"vitprof: {point.name} ({point.value}) is left out: {one_line(error)}\n"
            )
    return plugged


def opener(plugged: Plugged, kind: str, name: str | None) -> Callable[..., Any] | None:
    """Returns what opens another package's part of that kind; None where the part is vitprof's own."""
    if name not in plugged[kind]:
        return None
    path, *_ = plugged[kind][name]
    found: Callable[..., Any] = resolve_name(path)
    return found
