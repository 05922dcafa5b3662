"""PyTorch's DataLoader: iterations that begin, batches that are requested and come, how they were
made.

An iteration is recognised as its iterator is made or begun again: some frameworks (ultralytics,
fastai) never call `DataLoader.__iter__`.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.measure.step_columns import n_ready
from vitprof.watch import early_iterators
from vitprof.watch.events import NAN, Kind
from vitprof.watch.fetch_times import MAKING, FetchTimes, unpacked
from vitprof.watch.loader_facts import loader_facts
from vitprof.watch.patches import LOADER, Recorder, Replacements, making
from vitprof.watch.patches.batch_sizes import BatchSizes, batch_sizes
from vitprof.watch.patches.models import FirstCall
from vitprof.watch.patches.own_iterations import OwnIterations
from vitprof.watch.patching import leave_sign
from vitprof.watch.sample_times import SlowSample
from vitprof.watch.worker_facts import processes_of

NUMBER = "_vitprof_number"
"""Attribute of an iterator of PyTorch's: its number."""
FREED_WITH = "_vitprof_freed_with"
"""Attribute of an iterator of PyTorch's: what is freed right after all that the iterator held before."""
UNPACKS = "_vitprof_unpacks"
"""Attribute of a method that is left in the place of PyTorch's own."""
BEGUN, REQUESTED, RECEIVED = int(Kind.BEGUN), int(Kind.REQUESTED), int(Kind.RECEIVED)
SHUT_DOWN, SAMPLED, FREED = int(Kind.SHUT_DOWN), int(Kind.SAMPLED), int(Kind.FREED)
EXHAUSTED, MADE, MADE_BETWEEN = int(Kind.EXHAUSTED), int(Kind.MADE), int(Kind.MADE_BETWEEN)
SLOW_SAMPLE = int(Kind.SLOW_SAMPLE)
LEAST_SAMPLING_S = 50e-6
"""What a sampler takes at least to be noted: PyTorch's own take less for a batch of a few hundred samples."""

LEAST_FREEING_S = 1e-3
"""What freeing an iterator takes at least to be noted: a loop of small epochs frees one each few steps."""


def install(recorder: Recorder, dataloader: ModuleType) -> Replacements:
    """Patches the iterators in `torch.utils.data.dataloader`, or in a module with classes like them."""
    replacements = Replacements()
    kinds = [kind for name, kind in vars(dataloader).items() if name.endswith("DataLoaderIter")]
    kind = vars(dataloader).get("DataLoader")
    if kind is not None and kind.__module__ == dataloader.__name__:
        replacements.replace(dataloader.DataLoader, "__init__", _init_noted)
    own = OwnIterations(dataloader)
    replacements.keep(own)
    beginning = _Beginning()
    for kind, name in itertools.product(kinds, ("__init__", "_reset")):
        if name in vars(kind):
            wrap = functools.partial(_begin_recorded, recorder, beginning, own)
            replacements.replace(kind, name, wrap)
    base = dataloader._BaseDataLoaderIter
    if base.__module__ == dataloader.__name__:
        wrap = functools.partial(_next_recorded, recorder)
        if making.is_timed():
            replacements.replace(base, "__next__", wrap, left=_next_unpacked)
        else:
            replacements.replace(base, "__next__", wrap)
        wrap = functools.partial(_sampling_recorded, recorder)
        replacements.replace(base, "_next_index", wrap)
        replacements.keep(_Taken(recorder))
    workers = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if recorder.causal is not None and workers is not None and "_process_data" in vars(workers):
        wrap = functools.partial(_coming_noted, recorder)
        replacements.replace(workers, "_process_data", wrap)
    if workers is not None and base.__module__ == dataloader.__name__:
        replacements.keep(recorder.time_unpickling())
    if workers is not None and "_shutdown_workers" in vars(workers):
        wrap = functools.partial(_shutdown_recorded, recorder)
        replacements.replace(workers, "_shutdown_workers", wrap)
    return replacements


def _init_noted(begin: Callable[..., None]) -> Callable[..., None]:
    """Leaves a sign that a DataLoader was made, for the program that listens where no training is seen."""

    @functools.wraps(begin)
    def begin_noted(*args: Any, **kwargs: Any) -> None:
        leave_sign("loader")
        begin(*args, **kwargs)

    return begin_noted


class _Beginning(threading.local):
    """The iterators that this thread is making or beginning again."""

    def __init__(self) -> None:
        self.iterators: list[Any] = []


def _begin_recorded(
    recorder: Recorder, beginning: _Beginning, own: OwnIterations, begin: Callable[..., None]
) -> Callable[..., None]:
    @functools.wraps(begin)
    def begin_recorded(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        # A base class's `__init__`, or `_reset` as a part of making the iterator.
        if any(iterator is self for iterator in beginning.iterators):
            begin(self, loader, *args, **kwargs)
            return
        since_s = perf_counter()
        # One that nobody has asked for yet begins for the script once it is given it.
        is_early = early_iterators.is_beginning()
        is_of_the_loop = MAKING.now.laps is None and not is_early
        try:
            if is_of_the_loop:
                recorder.before_begin()
            if not is_early:
                since_s = own.since_s(loader, perf_counter())
        except Exception as error:
            recorder.give_up(error)
        beginning.iterators.append(self)
        try:
            with recorder.forking:
                begin(self, loader, *args, **kwargs)
        finally:
            beginning.iterators.remove(self)
        until_s = perf_counter()
        if is_of_the_loop:
            _record_begun(recorder, self, loader, since_s, until_s)

    return begin_recorded


class _Taken:
    """Records that an iterator begins which has begun early (`early_iterators`): as the script is given it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.remove = early_iterators.listen(self._taken)
        """Records no more."""

    def _taken(self, iterator: Any, loader: Any, since_s: float) -> None:
        try:
            self._recorder.before_begin()
        except Exception as error:
            self._recorder.give_up(error)
        _record_begun(self._recorder, iterator, loader, since_s, perf_counter())


def _record_begun(
    recorder: Recorder, iterator: Any, loader: Any, since_s: float, until_s: float
) -> None:
    try:
        recorder.on_iteration()
        described = recorder.described(
            loader, "loader", functools.partial(_facts_of, recorder, loader)
        )
        number = described.number
        begun = getattr(iterator, NUMBER, 0)
        if not begun:
            facts = {"loader": number, **processes_of(iterator)}
            begun = recorder.number(iterator, "iterator", lambda: facts)
            setattr(iterator, NUMBER, begun)
            setattr(iterator, LOADER, described)
            setattr(iterator, FREED_WITH, _FreedLast(recorder, iterator, begun))
        recorder.emit((BEGUN, until_s, get_ident(), begun, number, since_s, NAN))
        if recorder.causal is not None:
            recorder.causal.breaks(described)
    except Exception as error:
        recorder.give_up(error)


class _FreedLast:
    """Notes how long an iterator takes to be freed, without a reference to it.

    CPython calls the callbacks of an object's weak references first, and then frees its attributes in the order
    in which they were set: this one is the last. What takes long is a list of millions of indices that a sampler has
    drawn, where the loop is left early.
    """

    def __init__(self, recorder: Recorder, iterator: Any, number: int) -> None:
        self._recorder = recorder
        self._number = number
        self._begins = _Moment()
        # Python clears this module's names before it frees the last iterators.
        self._is_python_ending = sys.is_finalizing
        self._iterator = weakref.ref(iterator, self._begins.note)

    def __del__(self) -> None:
        if self._is_python_ending():
            return
        try:
            since_s = self._begins.at_s
            now_s = perf_counter()
            if now_s - since_s >= LEAST_FREEING_S and MAKING.now.laps is None:
                self._recorder.emit((FREED, now_s, get_ident(), self._number, since_s, NAN, NAN))
        except Exception as error:
            self._recorder.give_up(error)


class _Moment:
    """When something happened; NaN before that."""

    def __init__(self) -> None:
        self.at_s = NAN
        # Python clears this module's names before it frees the last iterators.
        self._now = perf_counter

    def note(self, _: object) -> None:
        self.at_s = self._now()


def _facts_of(recorder: Recorder, loader: Any) -> dict[str, Any]:
    return {**loader_facts(loader), **recorder.declared.facts_as_begun(loader)}


def _next_recorded(recorder: Recorder, following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch

    gradients_are_on = torch.is_grad_enabled
    first_call = FirstCall(recorder)
    record_received = functools.partial(_record_received, recorder, batch_sizes())

    @functools.wraps(following)
    def next_recorded(self: Any) -> Any:
        # A dataset reads a loader of its own: that is part of making the batch that is requested.
        if MAKING.now.laps is not None:
            return unpacked(following(self))[0]
        MAKING.now.times = None
        number = 0
        kept = None
        acts = False
        thread = get_ident()
        gradients = gradients_are_on()
        try:
            number = getattr(self, NUMBER, 0) or _numbered(recorder, self)
            leave_sign("gradients" if gradients else "batch")
            ready = n_ready(self)
            if recorder.notes:
                recorder.before_request(getattr(self, LOADER, None), gradients=gradients)
            now_s = perf_counter()
            recorder.emit((REQUESTED, now_s, thread, number, ready, gradients, NAN))
            recorder.pending[0] = now_s
            acts = recorder.acts
            if acts:
                loader = getattr(self, LOADER, None)
                kept = recorder.before_batch(now_s, loader, number, gradients=gradients)
        except Exception as error:
            recorder.give_up(error)
        if kept is not None:
            recorder.pending[0] = 0.0
            record_received(self, number, thread, perf_counter(), kept, None)
            return kept
        try:
            delivered = following(self)
        except BaseException as error:
            recorder.pending[0] = 0.0
            _record_exhausted(recorder, number, failed=not isinstance(error, StopIteration))
            raise
        now_s = perf_counter()
        recorder.pending[0] = 0.0
        batch, times = unpacked(delivered)
        record_received(self, number, thread, now_s, batch, times)
        try:
            if not gradients:
                first_call.listen(number)
            elif acts:
                recorder.keep_batch(getattr(self, LOADER, None), batch)
        except Exception as error:
            recorder.give_up(error)
        return batch

    return next_recorded


def _next_unpacked(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Takes off what workers send with a batch, where nothing is recorded any more: those that run already
    go on with that, and new ones begin with it."""
    if hasattr(following, UNPACKS):
        return following

    @functools.wraps(following)
    def next_unpacked(self: Any) -> Any:
        return unpacked(following(self))[0]

    setattr(next_unpacked, UNPACKS, True)
    return next_unpacked


def _record_exhausted(recorder: Recorder, number: int, *, failed: bool) -> None:
    now_s = perf_counter()
    try:
        recorder.emit((EXHAUSTED, now_s, get_ident(), number, failed, NAN, NAN))
        recorder.exhausted(now_s)
    except Exception as error:
        recorder.give_up(error)


def _shutdown_recorded(
    recorder: Recorder, shut_down: Callable[[Any], None]
) -> Callable[[Any], None]:
    """Records the end of an iterator's workers: with `next(iter(loader))` it comes before the script has
    the batch."""
    # Python clears this module's names before it frees the last iterators.
    is_python_ending = sys.is_finalizing

    @functools.wraps(shut_down)
    def shutdown_recorded(self: Any) -> None:
        if is_python_ending():
            shut_down(self)
            return
        if recorder.causal is not None:
            recorder.causal.breaks(getattr(self, LOADER, None))
        since_s = perf_counter()
        shut_down(self)
        number = getattr(self, NUMBER, 0)
        if number:
            now_s = perf_counter()
            recorder.emit((SHUT_DOWN, now_s, get_ident(), number, since_s, NAN, NAN))
            recorder.shut_down(now_s)

    return shutdown_recorded


def _coming_noted(recorder: Recorder, process_data: Callable[..., Any]) -> Callable[..., Any]:
    """Tells that the batch which was requested has come, before more indices are given out for it."""

    @functools.wraps(process_data)
    def coming_noted(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if recorder.causal is not None and MAKING.now.laps is None:
                recorder.causal.came(data)
        except Exception as error:
            recorder.give_up(error)
        return process_data(self, data, *args, **kwargs)

    return coming_noted


def _sampling_recorded(
    recorder: Recorder, next_index: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Records how long a sampler takes for a batch: in the loop's process, whatever the number of workers."""

    @functools.wraps(next_index)
    def sampling_recorded(self: Any) -> Any:
        since_s = perf_counter()
        index = next_index(self)
        now_s = perf_counter()
        if recorder.causal is not None and MAKING.now.laps is None:
            recorder.causal.sampled(now_s - since_s)
        # A dataset that reads a loader of its own: that is part of making the batch.
        is_long = now_s - since_s >= LEAST_SAMPLING_S and MAKING.now.laps is None
        if is_long and not early_iterators.is_beginning():
            number = getattr(self, NUMBER, 0)
            recorder.emit((SAMPLED, now_s, get_ident(), number, since_s, NAN, NAN))
        return index

    return sampling_recorded


def _numbered(recorder: Recorder, iterator: Any) -> int:
    """Numbers an iterator of PyTorch's, and notes that at itself: to look it up takes ten times as long."""
    number = recorder.number(iterator, "iterator")
    setattr(iterator, NUMBER, number)
    return number


def _record_received(
    recorder: Recorder,
    sizes: BatchSizes,
    iterator: Any,
    number: int,
    thread: int,
    now_s: float,
    batch: Any,
    times: FetchTimes | None,
) -> None:
    emit = recorder.emit
    try:
        if recorder.causal is not None:
            recorder.causal.received(now_s, times)
        samples, first, values = sizes.of(batch)
        emit((RECEIVED, now_s, thread, number, samples, first, values))
        if recorder.notes or now_s >= recorder.look_at_s:
            recorder.received(now_s, batch)
            recorder.describe_batch(getattr(iterator, LOADER, None), batch)
        if times is None:
            return
        (
            dataset_s, transform_s, collate_s, start_s, end_s, worker, transforms, each, says, pickled
        ) = times  # fmt: skip
        made_in = NAN if worker < 0 else worker
        emit((MADE, now_s, thread, number, dataset_s, transform_s, collate_s))
        emit((MADE_BETWEEN, now_s, thread, number, start_s, end_s, made_in))
        slow: tuple[SlowSample, ...] = () if each is None else each[1]
        for index, took_s, _ in slow:
            emit((SLOW_SAMPLE, now_s, thread, number, index, took_s, NAN))
        loader = getattr(iterator, LOADER, None)
        if loader is not None:
            recorder.stages.add((loader.number, transforms, int(samples), each, worker))
            if worker >= 0:
                recorder.received_from_worker(loader)
            if says is not None:
                recorder.describe_worker(loader, says)
            if pickled is not None:
                recorder.add_pickled(loader, pickled)
    except Exception as error:
        recorder.give_up(error)
