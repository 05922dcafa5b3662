"""Watches somebody else's training from inside its process: the same measurements as of a job of our own.

`vitprof watch -- COMMAND` changes nothing in the script. `startup/sitecustomize.py` comes first on PYTHONPATH, so
Python runs it in every process below the command; it waits for PyTorch's DataLoader (`on_import`), times what that does
(`loader_hooks`, `timed`, `composes`), finds the one that trains (`loop`), makes steps of it (`steps`, `transforms`) and
sends them to whoever started the command (`session`, `connection`). `vitprof.watch(loader)` does the same for a loader
of any kind (`watched`, `runs`), with or without the command. An error of ours ends the watching, never the training
(`guard`). In a trial of a tournament `overrides` changes the arguments of its loader. In the watched process no module
of ours imports Streamlit, SQLAlchemy, pandas or Plotly.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """`vitprof.watch` is this package and a function: importing a module of it must not take the function away."""

    def __call__(self, loader: Any, *, name: str = "", quiet: bool = False) -> Any:
        """Returns what passes for `loader`, and is recorded as a run when it is looped over: see `watched.watch`."""
        from vitprof.watch.watched import watch

        return watch(loader, name=name, quiet=quiet)


sys.modules[__name__].__class__ = _Callable
