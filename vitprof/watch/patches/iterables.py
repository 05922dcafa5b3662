"""Loaders of any kind, behind a proxy of ours (`vitprof.watch`), those of other libraries, and steps that
the script marks (`vitprof.step`)."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.measure.step_columns import n_ready
from vitprof.watch.events import NAN, Kind
from vitprof.watch.fetch_times import MAKING
from vitprof.watch.loader_facts import generic_facts
from vitprof.watch.patches import CURRENT, Recorder
from vitprof.watch.patches.batch_sizes import batch_sizes
from vitprof.watch.patching import OTHER_LOADERS, when_imported
from vitprof.watch.proxy import Proxy, passing_for

BEGUN, REQUESTED, RECEIVED = int(Kind.BEGUN), int(Kind.REQUESTED), int(Kind.RECEIVED)
EXHAUSTED, ENTERED, LEFT = int(Kind.EXHAUSTED), int(Kind.ENTERED), int(Kind.LEFT)


class Fetching(threading.local):
    """Whether this thread is within a recorded iteration: what that iterates over is a part of it."""

    def __init__(self) -> None:
        self.within = False


FETCHING = Fetching()


def begin_recorded(
    loader: Any,
    begin: Callable[[], Any],
    facts: dict[str, Any],
    requested: Callable[[Any], bool] = lambda iterator: True,
) -> Any:
    """Begins an iteration over `loader`, of any kind, of which `facts` are known; returns an iterator that
    records its batches. `requested` is called as one is requested, and returns whether to record it."""
    recorder = CURRENT.recorder
    if recorder is None or FETCHING.within or MAKING.now.laps is not None:
        return begin()
    since_s = perf_counter()
    FETCHING.within = True
    try:
        iterator = begin()
    finally:
        FETCHING.within = False
    recorded = recorded_iterator(iterator, loader, requested)
    record_begun(recorder, recorded, loader, facts, since_s, perf_counter())
    return recorded


def recorded_iterator(
    iterator: Any, loader: Any, requested: Callable[[Any], bool] = lambda iterator: True
) -> Any:
    """Returns a proxy of an iterator over `loader` that records its batches."""
    return passing_for(RecordedIterator, iterator)(iterator, loader, requested)


class RecordedIterator(Proxy):
    """A proxy of a loader's iterator."""

    def __init__(self, iterator: Any, loader: Any, requested: Callable[[Any], bool]) -> None:
        super().__init__(iterator)
        self._vitprof_loader = loader
        """Kept alive as long as its iterator."""
        self._vitprof_requested = requested

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        iterator = self._vitprof_wrapped
        # Python clears this module's names before it frees what the script has left.
        if FETCHING is None:
            return next(iterator)
        if FETCHING.within or MAKING.now.laps is not None or not self._vitprof_requested(self):
            return next(iterator)
        recorder = CURRENT.recorder
        if recorder is None:
            return next(iterator)
        return fetch_recorded(recorder, self, functools.partial(next, iterator))


def record_begun(
    recorder: Recorder,
    iterator: Any,
    loader: Any,
    facts: dict[str, Any],
    since_s: float,
    until_s: float,
) -> None:
    """Records that an iteration over `loader`, of which `facts` are known, was begun."""
    try:
        number = recorder.number(loader, "loader", lambda: dict(facts))
        begun = recorder.number(iterator, "iterator", lambda: {"loader": number})
        recorder.emit((BEGUN, until_s, get_ident(), begun, number, since_s, NAN))
    except Exception as error:
        recorder.give_up(error)


def fetch_recorded(recorder: Recorder, iterator: Any, fetch: Callable[[], Any]) -> Any:
    """Returns what `fetch` returns, the next batch of `iterator`; records the request and the batch.

    A DataLoader inside may be asked meanwhile: those requests are within this one.
    """
    import torch

    number = 0
    kept = None
    loader = None
    acts = False
    thread = get_ident()
    gradients = torch.is_grad_enabled()
    try:
        number = recorder.number(iterator, "iterator")
        recorder.default_device()
        recorder.before_request()
        now_s = perf_counter()
        recorder.emit((REQUESTED, now_s, thread, number, n_ready(iterator), gradients, NAN))
        recorder.pending[0] = now_s
        acts = recorder.acts
        if acts:
            loader = recorder.described(iterator._vitprof_loader, "loader")
            kept = recorder.before_batch(now_s, loader, number, gradients=gradients)
    except Exception as error:
        recorder.give_up(error)
    FETCHING.within = True
    try:
        batch = fetch() if kept is None else kept
    except BaseException as error:
        failed = not isinstance(error, StopIteration)
        now_s = perf_counter()
        recorder.emit((EXHAUSTED, now_s, thread, number, failed, NAN, NAN))
        recorder.exhausted(now_s)
        raise
    finally:
        FETCHING.within = False
        recorder.pending[0] = 0.0
    now_s = perf_counter()
    try:
        recorder.emit((RECEIVED, now_s, thread, number, *batch_sizes().of(batch)))
        recorder.received(now_s, batch)
        if acts and gradients and kept is None:
            recorder.keep_batch(loader, batch)
    except Exception as error:
        recorder.give_up(error)
    return batch


def record_mark(recorder: Recorder, *, entering: bool) -> None:
    """Records that the script enters or leaves a step that it marks."""
    kind = ENTERED if entering else LEFT
    recorder.emit((kind, perf_counter(), get_ident(), 0, NAN, NAN, NAN))
    if recorder.marks is None:
        return
    if entering:
        recorder.marks.entered()
    else:
        recorder.marks.left()


@functools.cache
def record_other_loaders() -> None:
    """Patches the classes of `OTHER_LOADERS`, as they are imported: their iterations are recorded."""
    for imported, name in OTHER_LOADERS:
        when_imported(imported, functools.partial(_record_iterations, name))


def _record_iterations(name: str, module: ModuleType) -> None:
    kind = getattr(module, name, None)
    if kind is None:
        return
    begin = kind.__iter__

    @functools.wraps(begin)
    def begin_noted(self: Any) -> Any:
        try:
            facts = generic_facts(self)
            hash(weakref.ref(self))
        except Exception:  # it cannot be known again
            return begin(self)
        return begin_recorded(self, functools.partial(begin, self), facts)

    kind.__iter__ = begin_noted
