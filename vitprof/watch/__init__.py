"""Watches a user's own training from inside its process, with the same measurements as for a built-in job.

`vitprof watch -- COMMAND` changes nothing in the script. `startup/sitecustomize.py` comes first on PYTHONPATH, so
Python runs it in every process of the command. It waits for the import of PyTorch's DataLoader (`install`),
times the loaders (`loader_hooks`, `fetch_times`), finds the one that trains (`watcher`, `loaders`), divides its
iteration into steps (`loop`, `fast_path`, `batches`), keeps them (`steps`) and sends them to the program that started
the command (`send`). `vitprof.watch(loader)` does the same for a loader of any kind
(`declared`, `callbacks/`), with or without the command.

An error in vitprof ends the watching, never the training (`patching.Guard`). In a trial of a tournament `trial` changes
the arguments of the train loader.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any
else:
    # it is imported in each process below `vitprof watch`, so it imports nothing
    ModuleType = type(sys)


class _Callable(ModuleType):
    """A module that can be called: `vitprof.watch` is both this package and a function, and must stay a function when
    a module of the package is imported.
    """

    def __call__(self, loader: Any, *, name: str = "", quiet: bool = False) -> Any:
        """Returns a proxy of `loader`; iterating over it is recorded as a run, see `declared.watch`."""
        from vitprof.watch.declared import watch

        return watch(loader, name=name, quiet=quiet)


sys.modules[__name__].__class__ = _Callable
