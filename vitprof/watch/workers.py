"""Times inside worker processes of a script that watches itself, however they are started.

A forked worker has what was put around PyTorch's classes in its parent. One that is started anew (spawn, forkserver)
has not: it is started with a function of this module, which sees to that first.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vitprof.watch.loader_hooks import time_composes, time_fetching
from vitprof.watch.on_import import DATALOADER

ORIGINAL: list[Callable[..., None]] = []
"""PyTorch's own function for a worker, where `work` stands in its place: here, and in a forked worker."""


def time_workers(dataloader: ModuleType) -> None:
    """Has workers of `torch.utils.data.dataloader` begin with `work`."""
    if not ORIGINAL:
        ORIGINAL.append(dataloader._utils.worker._worker_loop)
        dataloader._utils.worker._worker_loop = work


def work(*args: Any, **kwargs: Any) -> None:
    """Does what a worker of PyTorch's does, with times."""
    dataloader = importlib.import_module(DATALOADER)
    with contextlib.suppress(Exception):  # without times, then
        time_fetching(dataloader)
        time_composes()
    begin = ORIGINAL[0] if ORIGINAL else dataloader._utils.worker._worker_loop
    begin(*args, **kwargs)
