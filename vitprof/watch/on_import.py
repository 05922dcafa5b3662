"""Calls a function with a module right after the process imports it, if it ever does."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

DATALOADER = "torch.utils.data.dataloader"
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
"""A module whose DataLoader has its own `__init__` and `__iter__`, and otherwise works as PyTorch's."""
SOCKET = "VITPROF_WATCH_SOCKET"
"""Environment variable: the socket on which the program that started the command listens."""
STEPS = "VITPROF_WATCH_STEPS"
"""Environment variable: the number of steps after which the script is ended."""
TRIAL_OVERRIDES, OPENED_UNDER = "VITPROF_WATCH_OVERRIDES", "VITPROF_WATCH_OPENED_UNDER"
"""Environment variables of a tournament's trials: see `trial`."""


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder, placed before all others, that calls `then(module)` when the module `name` has been executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)  # from the finders after this: another may wait for the same module
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


def is_watched_rank() -> bool:
    """Returns whether this process is watched: rank 0 of a distributed job, or a job of one process."""
    return os.environ.get("RANK", "0") == "0"


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Calls `then(module)` now, if the module `name` is imported already, else once it has been executed."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, AfterImport(name, then))
    else:
        then(module)
