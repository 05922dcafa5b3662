"""Storages of other packages, by their entry points `vitprof.storages`.

Each is a module that imports no PyTorch, with `STORAGE` (a `StoragePart`), `STRATEGIES` with it, and as
"package.module:name" `OPENER` and `FORMAT`, as `vitprof.engine.storage.Entry` has them.
"""

import sys
from importlib import metadata
from typing import Any

from vitprof.errors import ConfigError, one_line

GROUP = "vitprof.storages"


def added(storages: dict[str, Any], strategies: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Adds what other packages bring; returns the opener and the format of each storage by its name. A package that
    cannot be used is left out, with a line on standard error.
    """
    plugged = {}
    for point in metadata.entry_points(group=GROUP):
        try:
            plugin = point.load()
            new = {plugin.STORAGE.name: plugin.STORAGE}, {each.name: each for each in plugin.STRATEGIES}
            if taken := [name for name in (*new[0], *new[1]) if name in storages or name in strategies]:
                raise ConfigError("name", taken[0], "there is one of that name already")
            plugged[plugin.STORAGE.name] = plugin.OPENER, plugin.FORMAT
            storages |= new[0]
            strategies |= new[1]
        except Exception as error:  # of any package
            sys.stderr.write(f"vitprof: {point.name} ({point.value}) is left out: {one_line(error)}\n")
    return plugged
