"""Times batches in the worker processes of a script that watches itself, however they are started.

A forked worker inherits the patches of PyTorch's classes from its parent. One that is started from scratch (spawn,
forkserver) does not: it begins with a function of this module, which installs them first.
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
"""PyTorch's own worker function, where `work` has replaced it: in this process, and in a forked worker."""


def time_workers(dataloader: ModuleType) -> None:
    """Makes the workers of `torch.utils.data.dataloader` begin with `work`."""
    if not ORIGINAL:
        ORIGINAL.append(dataloader._utils.worker._worker_loop)
        dataloader._utils.worker._worker_loop = work


def work(*args: Any, **kwargs: Any) -> None:
    """Runs PyTorch's worker function, with the timing installed."""
    dataloader = importlib.import_module(DATALOADER)
    with contextlib.suppress(Exception):  # the worker then runs without times
        time_fetching(dataloader)
        time_composes()
    begin = ORIGINAL[0] if ORIGINAL else dataloader._utils.worker._worker_loop
    begin(*args, **kwargs)
