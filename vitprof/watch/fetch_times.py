"""The times in which a batch was made, on their way to the loop that requested it, and of each transform."""

import functools
import marshal
import math
import os
import sys
import threading
from collections.abc import Callable
from time import perf_counter, thread_time
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from vitprof.watch.events import WORK

TransformTimes = tuple[tuple[str, ...], int, tuple[float, ...]]
"""For one Compose: the names of its transforms in order, the number of its calls, the seconds in each transform."""
FetchTimes = tuple[float, float, float, float, float, float, tuple[TransformTimes, ...]]
"""Seconds in the dataset (with transforms), in transforms, in collate; begin and end (s, monotonic clock); number of
the worker (-1: none); the times of each Compose."""
WORK_EVERY = 4
"""Of so many batches that a thread makes, one has such an entry: it takes 80 us between the work of a training, ten
times as long as all the rest."""
WORK_OFTEN = 64
"""After so many batches it is one of `WORK_LATER`."""
WORK_LATER = 32
"""Such an entry counts for as many as there would have been: a mean over all of them is one over all batches."""
MADE = ("dataset_s", "transform_s", "collate_s", "start_s", "end_s", "worker")
"""The names of the first six of `FetchTimes`."""
FETCHED = ("t_start", "t_got", "samples", "queue_depth", *MADE)
"""The figures of a batch that the fast path notes: when it was requested and returned (s, the loop's clock), how many
were ready when it was requested, and how it was made. What is not known is NaN."""
UNKNOWN = (math.nan,) * 7
"""The last figures of `FETCHED` for a batch of which nothing is known."""
MARK = "vitprof.watch.fetch_times"
"""Begins what a worker sends in place of a batch: this, the batch, and its times as bytes, which the pinning thread
leaves alone. Pickling that takes 0.4 us and reading it 0.3; an object of a class of ours took 1.0 and 0.9."""


def made_between(times: FetchTimes, since_s: float, until_s: float) -> float:
    """Returns how long (s) between `since_s` and `until_s` a worker was still making the batch; 0 without a worker."""
    ended, worker = times[4], times[5]
    return 0.0 if worker < 0 or ended < since_s else min(ended, until_s) - since_s


class Laps:
    """The times of each transform of one Compose so far, for the batch that is being made."""

    __slots__ = ("calls", "compose", "names", "seconds")

    def __init__(self, compose: Any) -> None:
        self.compose = compose  # kept, so that no other one can get its `id()` meanwhile
        self.calls = 0
        self.names: list[str] = []
        self.seconds: list[float] = []

    def first(self, transform: Any, took_s: float) -> float:
        """Adds a transform that is called for the first time in this batch; returns the time now (s)."""
        self.names.append(name_of(transform))
        self.seconds.append(took_s)
        return perf_counter()


class Making:
    """The times so far of the batch that a thread is making."""

    __slots__ = ("batches", "collate_s", "laps", "opened", "times", "waited_s")

    def __init__(self) -> None:
        self.collate_s = self.waited_s = 0.0
        """The time in collate, and of all in which the making waited for other ranks (not part of the former)."""
        self.laps: dict[int, Laps] | None = None
        """Times by the `id()` of each Compose; None where no batch is being made, and inside a Compose."""
        self.batches = self.opened = 0
        """Batches that this thread began to make, and files that it opened since, by Python's own functions."""
        self.times: FetchTimes | None = None
        """Times of the last batch that this thread made for a loop of its own; None once `unpacked` has taken them."""


class MakingByThread(threading.local):
    """What each thread makes. It is looked up once in a function: an attribute of a thread's own takes eight times as
    long as any other."""

    def __init__(self) -> None:
        self.now = Making()


MAKING = MakingByThread()


@functools.cache
def count_opening() -> None:
    """Counts the files that threads of this process open, from now on.

    To be called only where batches are made: a hook for audits cannot be removed, and it costs each event of a
    process. Receiving a batch from a worker has a dozen of them.
    """
    sys.addaudithook(count_opened)


def count_opened(event: str, _: object) -> None:
    """Counts the files that a thread opens: a hook for `sys.addaudithook`."""
    if event == "open":
        MAKING.now.opened += 1


class TimedCollate:
    """A collate function that records its time."""

    __slots__ = ("_collate",)

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        making = MAKING.now
        began = perf_counter() - making.waited_s
        batch = self._collate(samples)
        making.collate_s += perf_counter() - making.waited_s - began
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_collate"), name)


def timed_fetch(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a replacement for a fetcher's `fetch` that notes how it made the batch, unless inside another one."""

    def fetch_timed(self: Any, index: Any) -> Any:
        making = MAKING.now
        if making.laps is not None:
            return fetch(self, index)
        making.collate_s = making.waited_s = 0.0
        making.batches += 1
        n_counted = 0  # how often the work on this batch counts, one of `WORK_EVERY`
        if making.batches <= WORK_OFTEN:
            n_counted = making.batches % WORK_EVERY == 0
        elif making.batches % WORK_LATER == 0:
            n_counted = WORK_LATER // WORK_EVERY
        if n_counted:
            cpu_s, queued_s, making.opened = thread_time(), _queued_s(), 0
        laps = making.laps = {}
        began = perf_counter()
        try:
            data = fetch(self, index)
        finally:
            making.laps = None
        began, ended = began + making.waited_s, perf_counter()  # as if those waits came first
        collate_s, transform_s = making.collate_s, 0.0
        transforms: tuple[TransformTimes, ...] = ()
        if laps:
            transforms = transform_sums(laps)
            for _, _, seconds in transforms:
                transform_s += sum(seconds)
        dataset_s = ended - began - collate_s
        worker = self._vitprof_worker
        if n_counted:
            work = (ended - began, thread_time() - cpu_s, _queued_s() - queued_s, making.opened)
            transforms += ((WORK, n_counted, tuple([n_counted * of_batch for of_batch in work])),)
        times = (dataset_s, transform_s, collate_s, began, ended, worker, transforms)
        if worker >= 0:
            return MARK, data, marshal.dumps(times)
        making.times = times
        return data

    return fetch_timed


def _queued_s() -> float:
    """Returns how long this thread has waited for a core so far (s); NaN where Linux does not count that."""
    try:
        schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            return int(os.read(schedstat, 100).split()[1]) / 1e9
        finally:
            os.close(schedstat)
    except (OSError, IndexError):
        return math.nan


def unpacked(batch: Any) -> tuple[Any, FetchTimes | None]:
    """Returns the batch in what an iterator has just returned to this thread, and how it was made, if that is known."""
    kind = type(batch)
    if (
        (kind is tuple or kind is list)
        and len(batch) == 3
        and type(batch[0]) is str
        and batch[0] == MARK
    ):
        return batch[1], marshal.loads(batch[2])
    making = MAKING.now
    times = making.times
    making.times = None
    return batch, times


def transform_sums(laps: dict[int, Laps]) -> tuple[TransformTimes, ...]:
    if len(laps) == 1:  # most datasets have one, and this runs once for each batch
        (lap,) = laps.values()
        return ((tuple(lap.names), lap.calls, tuple(lap.seconds)),) if lap.calls else ()
    found: dict[tuple[str, ...], Laps] = {}
    for lap in laps.values():
        if not lap.calls:  # every call failed, and the dataset caught the error
            continue
        names = tuple(lap.names)
        if (known := found.setdefault(names, lap)) is not lap:
            known.calls += lap.calls
            known.seconds = [a + b for a, b in zip(known.seconds, lap.seconds, strict=True)]
    return tuple([(names, lap.calls, tuple(lap.seconds)) for names, lap in found.items()])


MAX_NAME = 60
NAMED = frozenset((FunctionType, BuiltinFunctionType, MethodType))
CLASSIC = (("self", "img", "t"), ("transforms",))
V2 = (("self", "inputs", "needs_unpacking", "transform", "outputs"), ("len", "transforms"))
"""Variables and names in the methods that are replaced; one with others may do something else."""


def timed_compose(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement for the method `call` of a class Compose that records the time of each transform for the
    batch that is being made; of an unknown method, of all of them together. The loop is torchvision's, with a clock.
    """
    code = getattr(call, "__code__", None)
    is_known = code is not None and (code.co_varnames, code.co_names) in (CLASSIC, V2)

    @functools.wraps(call)
    def call_timed(self: Any, *inputs: Any, **named: Any) -> Any:
        making = MAKING.now
        found = making.laps
        if found is None:
            return call(self, *inputs, **named)
        laps = found.get(id(self)) or found.setdefault(id(self), Laps(self))
        seconds, in_turn = laps.seconds, is_known and not named
        making.laps = None
        try:
            outputs = inputs[0] if len(inputs) == 1 else inputs
            needs_unpacking = len(inputs) > 1
            began = perf_counter()
            for i, transform in enumerate(
                self.transforms if in_turn else [functools.partial(call, self, **named)]
            ):
                outputs = transform(*inputs)
                inputs = outputs if needs_unpacking else (outputs,)
                ended = perf_counter()
                if i < len(seconds):
                    seconds[i] += ended - began
                else:
                    began = laps.first(transform if in_turn else self, ended - began)
                    continue
                began = ended
            laps.calls += 1
            return outputs
        finally:
            making.laps = found

    return call_timed


def name_of(transform: Any) -> str:
    """Returns the name of a transform: the function's, also in a `functools.partial`, else its class's."""
    kind = type(transform)
    if kind is functools.partial:
        return name_of(transform.func)
    return str(
        transform.__name__ if kind in NAMED or isinstance(transform, type) else kind.__name__
    )[:MAX_NAME]
