"""Watches a user's own training: hooks in its process record events, and a pure core outside decides what they mean.

`vitprof watch -- COMMAND` changes nothing in the script. `startup/sitecustomize.py` comes first on PYTHONPATH, so
Python runs it in every process of the command. It waits for the import of PyTorch's DataLoader (`install`) and puts
the hooks in place (`patches/`), which append rows of numbers to a buffer (`events`). A thread of ours sends them to
the program that started the command (`transport`). There `core/` finds, with hindsight, which loader trains and where
its steps begin and end. `vitprof.watch(loader)` does the same for a loader of any kind (`api`, `callbacks/`), with or
without the command.

An error in vitprof ends the watching, never the training (`patches.watching`). In a trial of a tournament `trial`
changes the arguments of the train loader.
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
        """Returns a proxy of `loader`; iterating over it is recorded as a run, see `api.watch`."""
        from vitprof.watch.api import watch

        return watch(loader, name=name, quiet=quiet)


sys.modules[__name__].__class__ = _Callable
