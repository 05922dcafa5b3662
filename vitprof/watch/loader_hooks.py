"""Patches PyTorch's DataLoader: times next(), the dataset, collate, and torchvision's Compose.

PyTorch is only half imported when this is installed: its classes can be patched; everything else waits for the first
`next()`.
"""

from __future__ import annotations

import functools
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.watch.fetch_times import MAKING, TimedCollate, timed_fetch, unpacked
from vitprof.watch.guard import Guard
from vitprof.watch.loop import Loop, the_loop
from vitprof.watch.on_import import STATEFUL, when_imported
from vitprof.watch.transform_hooks import timed_compose

COMPOSES = {"torchvision.transforms.transforms": "__call__", "torchvision.transforms.v2._container": "forward"}
"""Modules with a class `Compose`, and its method that transforms."""
MARK = "_vitprof_times"
"""Attribute of a function that is patched already."""


def install(dataloader: ModuleType) -> None:
    """Patches the classes of `torch.utils.data.dataloader`, and both `Compose`; once in a process."""
    if hasattr(dataloader.DataLoader.__iter__, MARK):
        return
    loop = the_loop()
    time_fetching(dataloader)
    _tell_beginning(dataloader.DataLoader, loop.guard, loop)
    when_imported(STATEFUL, lambda module: _tell_beginning(module.StatefulDataLoader, loop.guard, loop))
    _time_next(dataloader, loop.guard, loop)
    time_composes()


def time_composes() -> None:
    """Patches both `Compose`, now or when they are imported."""
    for name, method in COMPOSES.items():
        when_imported(name, functools.partial(_time_compose, method=method))


def _time_compose(module: ModuleType, *, method: str) -> None:
    transform = getattr(module.Compose, method)
    if not hasattr(transform, MARK):
        timed = timed_compose(transform)
        setattr(timed, MARK, True)
        setattr(module.Compose, method, timed)


def time_fetching(dataloader: ModuleType) -> None:
    """Makes the fetchers, in the loop's process and in workers, tell how they make a batch."""
    fetchers = dataloader._utils.fetch
    begin = fetchers._BaseDatasetFetcher.__init__
    if hasattr(begin, MARK):
        return

    @functools.wraps(begin)
    def begin_timed(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.collate_fn = TimedCollate(self.collate_fn)
        info = dataloader.get_worker_info()
        self._vitprof_worker = -1 if info is None else int(info.id)

    setattr(begin_timed, MARK, True)
    fetchers._BaseDatasetFetcher.__init__ = begin_timed
    begin_single = dataloader._SingleProcessDataLoaderIter.__init__

    @functools.wraps(begin_single)
    def begin_own(self: Any, *args: Any, **kwargs: Any) -> None:
        begin_single(self, *args, **kwargs)
        self._dataset_fetcher._vitprof_worker = -1  # also in a worker, for a loader that its dataset reads

    dataloader._SingleProcessDataLoaderIter.__init__ = begin_own
    for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        fetcher.fetch = timed_fetch(fetcher.fetch)


def _tell_beginning(kind: Any, guard: Guard, loop: Loop) -> None:
    """Patches `__iter__` of a DataLoader class to report to `loop` each iteration that begins."""
    begin = kind.__iter__

    @functools.wraps(begin)
    def begin_told(self: Any) -> Any:
        guard(loop.told.beginning, self, perf_counter())
        began = perf_counter()
        with loop.forking:  # no thread of vitprof may hold a lock while workers are forked
            iterator = begin(self)
        guard(loop.told.begun, self, iterator, began, perf_counter())
        return iterator

    setattr(begin_told, MARK, True)
    kind.__iter__ = begin_told


def _time_next(dataloader: ModuleType, guard: Guard, loop: Loop) -> None:
    """Patches `__next__` to report to `loop` each batch that is requested and returned."""
    following, plain = dataloader._BaseDataLoaderIter.__next__, loop.plain

    @functools.wraps(following)
    def next_told(self: Any) -> Any:
        if plain.on and plain.iterator() is self:
            return plain.fetch(self, following, any_next)
        return any_next(self)

    def any_next(self: Any) -> Any:
        if MAKING.laps is not None:  # a dataset reads a loader of its own: part of making the batch that is requested
            return unpacked(following(self))[0]
        guard(loop.told.asked, self, perf_counter())
        kept = loop.told.take_kept()
        if kept is not None:
            guard(loop.told.given, self, perf_counter(), kept, None)
            return kept
        MAKING.times = None
        try:
            batch = following(self)
        except BaseException:
            guard(loop.told.left_empty, self, perf_counter())
            raise
        now = perf_counter()
        batch, times = unpacked(batch)
        guard(loop.told.given, self, now, batch, times)
        return batch

    dataloader._BaseDataLoaderIter.__next__ = next_told
