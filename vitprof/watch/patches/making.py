"""How a batch is made: the dataset, collate and torchvision's `Compose` are timed, in the loop's process
and in the workers of its loader.

The times travel with the batch (`fetch_times`); whoever gets the batch takes them off.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vitprof.watch.causal_ledger import join_as_worker
from vitprof.watch.fetch_times import (
    MARK,
    CollateTimer,
    count_opening,
    sample_clock,
    timed_compose,
    timed_fetch,
)
from vitprof.watch.patching import DATALOADER, when_imported
from vitprof.watch.pickling import pickling_clock
from vitprof.watch.stack_answers import note_maker

COMPOSES = {
    "torchvision.transforms.transforms": "__call__",
    "torchvision.transforms.v2._container": "forward",
}
"""Modules with a class `Compose`, and its method that transforms."""
ORIGINAL: list[Callable[..., None]] = []
"""PyTorch's own worker function, where `work` has replaced it: in this process, and in a forked worker."""


@functools.cache
def time_composes() -> None:
    """Patches both `Compose`, now or when they are imported."""

    def time_compose(module: ModuleType) -> None:
        method = COMPOSES[module.__name__]
        setattr(module.Compose, method, timed_compose(getattr(module.Compose, method)))

    for name in COMPOSES:
        when_imported(name, time_compose)


@functools.cache
def time_fetching(dataloader: ModuleType) -> None:
    """Makes the fetchers, in the loop's process and in workers, record how they make a batch."""
    fetchers = dataloader._utils.fetch
    begin = fetchers._BaseDatasetFetcher.__init__

    @functools.wraps(begin)
    def begin_timed(self: Any, *args: Any, **kwargs: Any) -> None:
        count_opening()
        begin(self, *args, **kwargs)
        self.collate_fn = CollateTimer(self.collate_fn)
        info = dataloader.get_worker_info()
        self._vitprof_worker = -1 if info is None else int(info.id)
        if info is not None:
            self._vitprof_pickling = pickling_clock(MARK)
            with contextlib.suppress(OSError):  # then others pause for what it does, and it is said
                join_as_worker(self._vitprof_worker)
        self._vitprof_clock = sample_clock(self)
        note_maker(is_worker=info is not None)

    fetchers._BaseDatasetFetcher.__init__ = begin_timed
    begin_single = dataloader._SingleProcessDataLoaderIter.__init__

    @functools.wraps(begin_single)
    def begin_own(self: Any, *args: Any, **kwargs: Any) -> None:
        begin_single(self, *args, **kwargs)
        self._dataset_fetcher._vitprof_worker = (
            -1
        )  # also in a worker, for a loader that its dataset reads

    dataloader._SingleProcessDataLoaderIter.__init__ = begin_own
    for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        fetcher.fetch = timed_fetch(fetcher.fetch)


def is_timed() -> bool:
    """Returns whether the times travel with a batch from its worker."""
    return time_fetching.cache_info().currsize > 0


def time_workers(dataloader: ModuleType) -> None:
    """Makes workers begin with `work`: one that is started from scratch (spawn) does not inherit the patches."""
    if not ORIGINAL:
        ORIGINAL.append(dataloader._utils.worker._worker_loop)
        dataloader._utils.worker._worker_loop = work


def work(*args: Any, **kwargs: Any) -> None:
    """Runs PyTorch's worker function, with the timing installed."""
    dataloader = importlib.import_module(DATALOADER)
    with contextlib.suppress(Exception):  # the worker then runs without times
        time_fetching(dataloader)
        time_composes()
    (ORIGINAL[0] if ORIGINAL else dataloader._utils.worker._worker_loop)(*args, **kwargs)
