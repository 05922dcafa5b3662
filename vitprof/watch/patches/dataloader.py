"""PyTorch's DataLoader: iterations that begin, batches that are requested and come, how they were
made.

An iteration is recognised as its iterator is made or begun again: some frameworks (ultralytics,
fastai) never call `DataLoader.__iter__`.
"""

from __future__ import annotations

import functools
import itertools
import marshal
import threading
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.measure.step_columns import n_ready
from vitprof.watch.events import NAN, Kind
from vitprof.watch.fetch_times import MAKING, MARK, FetchTimes
from vitprof.watch.loaders import loader_facts
from vitprof.watch.patches import Recorder, Replacements
from vitprof.watch.patches.batch_sizes import BatchSizes, batch_sizes
from vitprof.watch.patches.models import FirstCall

NUMBER = "_vitprof_number"
"""Attribute of an iterator of PyTorch's: its number."""
BEGUN, REQUESTED, RECEIVED = int(Kind.BEGUN), int(Kind.REQUESTED), int(Kind.RECEIVED)
SHUT_DOWN = int(Kind.SHUT_DOWN)
EXHAUSTED, MADE, MADE_BETWEEN = int(Kind.EXHAUSTED), int(Kind.MADE), int(Kind.MADE_BETWEEN)


def install(recorder: Recorder, dataloader: ModuleType) -> Replacements:
    """Patches the iterators in `torch.utils.data.dataloader`, or in a module with classes like them."""
    replacements = Replacements()
    kinds = [kind for name, kind in vars(dataloader).items() if name.endswith("DataLoaderIter")]
    beginning = _Beginning()
    for kind, name in itertools.product(kinds, ("__init__", "_reset")):
        if name in vars(kind):
            wrap = functools.partial(_begin_recorded, recorder, beginning)
            replacements.replace(kind, name, wrap)
    base = dataloader._BaseDataLoaderIter
    if base.__module__ == dataloader.__name__:
        wrap = functools.partial(_next_recorded, recorder)
        replacements.replace(base, "__next__", wrap)
    workers = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if workers is not None and "_shutdown_workers" in vars(workers):
        wrap = functools.partial(_shutdown_recorded, recorder)
        replacements.replace(workers, "_shutdown_workers", wrap)
    return replacements


class _Beginning(threading.local):
    """The iterators that this thread is making or beginning again."""

    def __init__(self) -> None:
        self.iterators: list[Any] = []


def _begin_recorded(
    recorder: Recorder, beginning: _Beginning, begin: Callable[..., None]
) -> Callable[..., None]:
    @functools.wraps(begin)
    def begin_recorded(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        # A base class's `__init__`, or `_reset` as a part of making the iterator.
        if any(iterator is self for iterator in beginning.iterators):
            begin(self, loader, *args, **kwargs)
            return
        if MAKING.now.laps is None:
            recorder.before_begin()
        since_s = perf_counter()
        beginning.iterators.append(self)
        try:
            begin(self, loader, *args, **kwargs)
        finally:
            beginning.iterators.remove(self)
        until_s = perf_counter()
        if MAKING.now.laps is None:
            _record_begun(recorder, self, loader, since_s, until_s)

    return begin_recorded


def _record_begun(
    recorder: Recorder, iterator: Any, loader: Any, since_s: float, until_s: float
) -> None:
    try:
        number = recorder.number(loader, "loader", functools.partial(loader_facts, loader))
        begun = getattr(iterator, NUMBER, 0)
        if not begun:
            begun = recorder.number(iterator, "iterator", lambda: {"loader": number})
            setattr(iterator, NUMBER, begun)
        recorder.emit((BEGUN, until_s, get_ident(), begun, number, since_s, NAN))
    except Exception as error:
        recorder.give_up(error)


def _next_recorded(recorder: Recorder, following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch

    gradients_are_on = torch.is_grad_enabled
    first_call = FirstCall(recorder)
    record_received = functools.partial(_record_received, recorder, batch_sizes())

    @functools.wraps(following)
    def next_recorded(self: Any) -> Any:
        # A dataset reads a loader of its own: that is part of making the batch that is requested.
        if MAKING.now.laps is not None:
            return following(self)
        number = getattr(self, NUMBER, 0) or _numbered(recorder, self)
        thread = get_ident()
        gradients = gradients_are_on()
        ready = n_ready(self)
        recorder.before_request()
        recorder.emit((REQUESTED, perf_counter(), thread, number, ready, gradients, NAN))
        try:
            batch = following(self)
        except BaseException as error:
            failed = not isinstance(error, StopIteration)
            now_s = perf_counter()
            recorder.emit((EXHAUSTED, now_s, thread, number, failed, NAN, NAN))
            recorder.exhausted(now_s)
            raise
        record_received(number, thread, perf_counter(), batch)
        if not gradients:
            first_call.listen(number)
        return batch

    return next_recorded


def _shutdown_recorded(
    recorder: Recorder, shut_down: Callable[[Any], None]
) -> Callable[[Any], None]:
    """Records the end of an iterator's workers: with `next(iter(loader))` it comes before the script has
    the batch."""

    @functools.wraps(shut_down)
    def shutdown_recorded(self: Any) -> None:
        since_s = perf_counter()
        shut_down(self)
        number = getattr(self, NUMBER, 0)
        if number:
            recorder.emit((SHUT_DOWN, perf_counter(), get_ident(), number, since_s, NAN, NAN))
            if recorder.marks is not None:
                recorder.marks.waited()

    return shutdown_recorded


def _numbered(recorder: Recorder, iterator: Any) -> int:
    """Numbers an iterator of PyTorch's, and notes that at itself: to look it up takes ten times as long."""
    number = recorder.number(iterator, "iterator")
    setattr(iterator, NUMBER, number)
    return number


def _record_received(
    recorder: Recorder,
    sizes: BatchSizes,
    number: int,
    thread: int,
    now_s: float,
    delivered: Any,
) -> None:
    emit = recorder.emit
    try:
        batch, times = _with_times(delivered)
        samples, first, values = sizes.of(batch)
        emit((RECEIVED, now_s, thread, number, samples, first, values))
        recorder.received(now_s, batch)
        if times is None:
            return
        dataset_s, transform_s, collate_s, start_s, end_s, worker, _ = times
        made_in = NAN if worker < 0 else worker
        emit((MADE, now_s, thread, number, dataset_s, transform_s, collate_s))
        emit((MADE_BETWEEN, now_s, thread, number, start_s, end_s, made_in))
    except Exception as error:
        recorder.give_up(error)


def _with_times(delivered: Any) -> tuple[Any, FetchTimes | None]:
    """Returns the batch in what a worker, or this thread, has made, and how it was made.

    Both stay where they are: the loop's own hook takes them.
    """
    kind = type(delivered)
    is_packed = (
        (kind is tuple or kind is list)
        and len(delivered) == 3
        and type(delivered[0]) is str
        and delivered[0] == MARK
    )
    if is_packed:
        return delivered[1], marshal.loads(delivered[2])
    return delivered, MAKING.now.times
