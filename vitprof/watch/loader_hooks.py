"""Patches PyTorch's DataLoader: times next(), the dataset, collate, and torchvision's Compose."""

import contextlib
import functools
import importlib
import inspect
import itertools
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.watch.fetch_times import (
    MAKING,
    TimedCollate,
    count_opening,
    timed_compose,
    timed_fetch,
    unpacked,
)
from vitprof.watch.patching import DATALOADER, OPTIMIZER, STATEFUL, Guard, leave_sign, when_imported
from vitprof.watch.watcher import Watcher, the_watcher

COMPOSES = {
    "torchvision.transforms.transforms": "__call__",
    "torchvision.transforms.v2._container": "forward",
}
"""Modules with a class `Compose`, and its method that transforms."""
MARK = "_vitprof_times"
"""Attribute of a function that is patched already."""
BEGINNING: list[Any] = []
"""The iterators that are being made or begun again."""
BEGAN_OWN: dict[int, float] = {}
"""When the `__iter__` of a loader's own class was called, by the loader's `id`."""
ORIGINAL: list[Callable[..., None]] = []
"""PyTorch's own worker function, where `work` has replaced it: in this process, and in a forked worker."""


@functools.cache
def install(dataloader: ModuleType) -> None:
    """Patches the classes of `torch.utils.data.dataloader`, and both `Compose`; once in a process."""
    watcher = the_watcher()
    begin = dataloader.DataLoader.__init__

    @functools.wraps(begin)
    def begin_noted(*args: Any, **kwargs: Any) -> None:
        leave_sign("loader")
        begin(*args, **kwargs)

    dataloader.DataLoader.__init__ = begin_noted
    time_fetching(dataloader)
    _report_beginning(dataloader, watcher)
    when_imported(STATEFUL, lambda module: _report_beginning(module, watcher))
    _time_next(dataloader, watcher.guard, watcher)
    _time_shutdown(dataloader._MultiProcessingDataLoaderIter, watcher)
    when_imported(OPTIMIZER, functools.partial(report_optimizers, watcher))
    time_composes()


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
        self.collate_fn = TimedCollate(self.collate_fn)
        info = dataloader.get_worker_info()
        self._vitprof_worker = -1 if info is None else int(info.id)

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


def _report_beginning(module: ModuleType, watcher: Watcher) -> None:
    """Reports each iteration as its iterator is made or begun again: some frameworks call no `DataLoader.__iter__`."""
    kinds = [kind for name, kind in vars(module).items() if name.endswith("DataLoaderIter")]
    for kind, name in itertools.product(kinds, ("__init__", "_reset")):
        begin = vars(kind).get(name)
        if begin is not None and not hasattr(begin, MARK):
            setattr(kind, name, _reported(begin, watcher, watcher.guard))


def _reported(begin: Callable[..., None], watcher: Watcher, guard: Guard) -> Callable[..., None]:
    @functools.wraps(begin)
    def begin_reported(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        with watcher.forking:  # no thread of vitprof may hold a lock while workers are forked
            if any(
                iterator is self for iterator in BEGINNING
            ):  # a base class, or part of making it
                begin(self, loader, *args, **kwargs)
                return
            if (began := BEGAN_OWN.pop(id(loader), 0.0)) == 0:
                guard(_time_own, loader, watcher, guard)
                guard(watcher.receiver.beginning, loader, perf_counter())
                began = perf_counter()
            BEGINNING.append(self)
            try:
                begin(self, loader, *args, **kwargs)
            finally:
                BEGINNING.remove(self)
            guard(watcher.receiver.begun, loader, self, began, perf_counter())

    setattr(begin_reported, MARK, True)
    return begin_reported


def _time_own(loader: Any, watcher: Watcher, guard: Guard) -> None:
    """Times the `__iter__` of the loader's own class from its next call on, which may do more than begin this."""
    base = sys.modules[DATALOADER].DataLoader
    owner: Any = next((c for c in type(loader).__mro__ if "__iter__" in vars(c)), base)
    if not isinstance(loader, base) or owner is base or hasattr(own := owner.__iter__, MARK):
        return

    def note(loader: Any) -> None:
        guard(watcher.receiver.beginning, loader, perf_counter())
        BEGAN_OWN[id(loader)] = perf_counter()

    def begin_own(self: Any) -> Any:
        note(self)
        return own(self)

    def generate_own(self: Any) -> Any:
        note(self)
        yield from own(self)

    timed = functools.wraps(own)(generate_own if inspect.isgeneratorfunction(own) else begin_own)
    setattr(timed, MARK, True)
    owner.__iter__ = timed


def _time_next(dataloader: ModuleType, guard: Guard, watcher: Watcher) -> None:
    following, plain = dataloader._BaseDataLoaderIter.__next__, watcher.plain

    @functools.wraps(following)
    def next_reported(self: Any) -> Any:
        if plain.on and plain.iterator() is self:
            return plain.fetch(self, following, any_next)
        return any_next(self)

    def any_next(self: Any) -> Any:
        if (
            MAKING.now.laps is not None
        ):  # a dataset reads a loader of its own: part of making the batch that is requested
            return unpacked(following(self))[0]
        guard(watcher.receiver.asked, self, perf_counter())
        kept, watcher.receiver.kept = watcher.receiver.kept, None
        if kept is not None:
            guard(watcher.receiver.given, self, perf_counter(), kept, None)
            return kept
        MAKING.now.times = None
        try:
            batch = following(self)
        except BaseException:
            guard(watcher.receiver.left_empty, self, perf_counter())
            raise
        now = perf_counter()
        batch, times = unpacked(batch)
        guard(watcher.receiver.given, self, now, batch, times)
        return batch

    dataloader._BaseDataLoaderIter.__next__ = next_reported


def report_optimizers(watcher: Watcher, optimizers: Any) -> None:
    """Makes the module `torch.optim.optimizer` report each step of an optimizer."""
    plain, guard = watcher.plain, watcher.guard

    def stepped(optimizer: Any, *_: Any) -> None:
        if plain.on and plain.iterator() is not None:
            plain.worked = perf_counter()
            if plain.forward is not None:
                plain.forward.stepped(plain.worked)
            if watcher.preparation.is_on:
                guard(watcher.preparation.step, plain.worked)
        else:
            guard(watcher.stepped, optimizer)

    optimizers.register_optimizer_step_post_hook(stepped)


def _time_shutdown(kind: Any, watcher: Watcher) -> None:
    """Times the end of workers: with `next(iter(loader))` it comes before the script has the batch."""
    shut_down = kind._shutdown_workers

    @functools.wraps(shut_down)
    def shut_down_timed(self: Any) -> None:
        since_s = perf_counter()
        shut_down(self)
        watcher.guard(note, since_s, perf_counter())

    def note(since_s: float, now_s: float) -> None:
        if watcher.source is not None or watcher.loaders.trainer != threading.get_ident():
            return
        watcher.plain.leave()
        loop = watcher.loop
        if (
            loop is not None
            and loop.step is not None
            and not loop.step.last
            and loop.state.name == "FETCHED"
        ):
            loop.step.wait_longer(loop.device, now_s - since_s)
            watcher.preparation.close_span(since_s)
            watcher.preparation.open_span(now_s)

    kind._shutdown_workers = shut_down_timed


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
