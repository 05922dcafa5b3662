"""The times in which a batch was made, on their way to the loop that requested it, and of each transform.

Runs in the loop's process and in its workers, for each batch, so it must take little.
"""

import contextlib
import functools
import itertools
import marshal
import math
import operator
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from struct import Struct
from time import perf_counter, process_time, thread_time
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

from vitprof.measure.core_use import LEAST_BATCH_S, TASKS, CoreTimes, look_counts_for
from vitprof.watch.causal_ledger import PROCESS
from vitprof.watch.core_use import CoreLook, look_at
from vitprof.watch.events import CORES_OF_COMPOSE, CORES_OF_STAGES, WORK
from vitprof.watch.own_thread import native_ids
from vitprof.watch.pickling import PickleTimes, PicklingClock
from vitprof.watch.sample_times import SampleClock, SampleTimer, SampleTimes, clock_for
from vitprof.watch.worker_facts import WorkerSays, said_at_first

TransformTimes = tuple[tuple[str, ...], int, tuple[float, ...]]
"""For one Compose: the names of its transforms in order, the number of its calls, the seconds in each transform."""
SECONDS_OF = operator.itemgetter(2)
"""Returns the seconds in each transform of `TransformTimes`."""
FetchTimes = tuple[
    float,
    float,
    float,
    float,
    float,
    float,
    tuple[TransformTimes, ...],
    SampleTimes | None,
    WorkerSays | None,
    PickleTimes | None,
]
"""Seconds in the dataset (with transforms), in transforms, in collate; begin and end (s, monotonic clock); number of
the worker (-1: none); the times of each Compose; those of the samples, where they are timed one by one; what the
worker says of itself, with its first batch; what it took to pickle earlier ones, with a few."""
OTHERS_FRAC = 0.05
OTHERS_S = 1e-4
"""From this share of the time of making a batch on, and from so many seconds, the CPU time of other threads
counts: a process has threads that do a little for itself."""
MARK = b"vitprof:"
"""Begins the bytes that a worker sends with a batch, which the pinning thread leaves alone."""
SENT = Struct("=8s6d")
"""These bytes: the mark and the six numbers of `FetchTimes`, before those of `marshal` with the rest, if there is any,
and with what the worker had settled, where a causal profile is measured (`causal_ledger`).
They take a worker half as long as a tuple of numbers or an object."""


class Laps:
    """The times of each transform of one Compose so far, for the batch that is being made."""

    __slots__ = ("calls", "compose", "looked_calls", "names", "seconds", "used")

    def __init__(self, compose: Any) -> None:
        self.compose = compose  # kept, so that no other one can get its `id()` meanwhile
        self.calls = 0
        self.names: list[str] = []
        self.seconds: list[float] = []
        self.looked_calls = 0
        """Calls of which it is known what they used of the cores."""
        self.used: list[list[float]] = []
        """What each transform used in these calls: the numbers of `CoreTimes`."""

    def first(self, transform: Any, took_s: float) -> float:
        """Adds a transform that is called for the first time in this batch; returns the time now (s)."""
        self.names.append(name_of(transform))
        self.seconds.append(took_s)
        return perf_counter()

    def add_use(self, at: list[CoreTimes]) -> None:
        """Adds what a call used: `at` is what had been used before its first transform, and after each."""
        self.looked_calls += 1
        used = [later.since(before) for before, later in itertools.pairwise(at)]
        if not self.used:
            self.used = [[0.0] * len(CoreTimes._fields) for _ in used]
        self.used = [
            [a + b for a, b in zip(sums, each, strict=True)]
            for sums, each in zip(self.used, used, strict=True)
        ]


class ThreadTimes(NamedTuple):
    """What a thread has used so far."""

    cpu_s: float
    queued_s: float
    """For how long it waited for a core."""


class MakingTimes:
    """The times so far of the batch that a thread is making."""

    __slots__ = (
        "batches",
        "collate_s",
        "file",
        "laps",
        "look",
        "looks_at_threads",
        "opened",
        "threads_before",
        "times",
        "took_s",
        "waited_s",
    )

    def __init__(self) -> None:
        self.collate_s = 0.0
        """The time in collate."""
        self.waited_s = 0.0
        """The time of all in which the making waited for other ranks; it is no part of `collate_s`."""
        self.laps: dict[int, Laps] | None = None
        """Times by the `id()` of each Compose; None where no batch is being made, and inside a Compose."""
        self.look: CoreLook | None = None
        """Looks at what the process uses of the cores for this batch, where that is known."""
        self.took_s = 0.0
        """How long the batch before took."""
        self.batches = 0
        """Batches that this thread began to make."""
        self.opened = 0
        """Files that it opened since the last look at its work, by Python's own functions."""
        self.file: Any = None
        """The last one of them, as the function was given it."""
        self.looks_at_threads = False
        """Whether it is looked at what each thread does for a batch: others than this one do a part of it."""
        self.threads_before: dict[int, ThreadTimes] = {}
        """What they had used as the batch before was made, where it is."""
        self.times: FetchTimes | None = None
        """Times of the last batch that this thread made for a loop of its own; None once `unpacked` has taken them."""


class MakingByThread(threading.local):
    """What each thread makes. It is looked up once in a function: an attribute of a thread's own takes eight times as
    long as any other."""

    def __init__(self) -> None:
        self.now = MakingTimes()


MAKING = MakingByThread()


@functools.cache
def count_opening() -> None:
    """Counts the files that threads of this process open, from now on.

    To be called only where batches are made: a hook for audits cannot be removed, and it costs each event of a
    process. Receiving a batch from a worker has a dozen of them.
    """
    sys.addaudithook(count_opened)


def count_opened(event: str, arguments: tuple[Any, ...]) -> None:
    """Counts the files that a thread opens: a hook for `sys.addaudithook`. What Linux says of a process is no file with
    data: vitprof's own hooks read that, also where a dataset waits for a thread."""
    if event == "open" and not str(arguments[0]).startswith("/proc/"):
        making = MAKING.now
        making.opened += 1
        making.file = arguments[0]


class CollateTimer:
    """A collate function that records its time."""

    __slots__ = ("_collate",)

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        making = MAKING.now
        if making.look is not None:
            making.look.begin_collate()
        began = perf_counter() - making.waited_s
        batch = self._collate(samples)
        making.collate_s += perf_counter() - making.waited_s - began
        if making.look is not None:
            making.look.end_collate()
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_collate"), name)


class MakingUse:
    """What the process uses of the machine while a thread of it makes a batch.

    Many datasets leave the work to others, and wait for these: threads of blosc, of an event loop as in zarr 3;
    programs such as ffmpeg. What these use counts where the main thread makes the batch; where another one does,
    the main thread may train meanwhile. Threads of OpenMP spin for some milliseconds after the work of a training:
    one that is not Python's counts only if it did nothing before the batch. In a transform OpenMP has the thread
    itself at work, too.
    """

    def __init__(self, making: MakingTimes, counts_for: int, index: Any) -> None:
        """Begins to look; `counts_for`: how many entries this one stands for, `index`: what the batch is made of."""
        self._making = making
        self._counts_for = counts_for
        self._is_main = threading.get_ident() == threading.main_thread().ident
        self._threads = thread_times() if making.looks_at_threads else None
        self._programs_s = programs_cpu_s()
        self._process_s = process_time()
        self._thread_s = thread_time()
        self._queued_s = queued_so_far()
        self.cores: tuple[CoreTimes, CoreTimes] | None = None
        """What the stages used of the cores, once `look` has ended."""
        self.look: CoreLook | None = None
        if self._is_main and making.took_s >= LEAST_BATCH_S:
            self.look = look_at(index)
            making.look = self.look
        making.opened = 0

    def end_look(self) -> None:
        """Ends looking at what the stages use of the cores, if it was begun: the batch is made."""
        if self.look is not None:
            self.cores = self.look.end()
            self._making.look = None

    def entries(
        self, laps: dict[int, Laps], took_s: float, transform_s: float
    ) -> tuple[TransformTimes, ...]:
        """Returns the entries of a batch that took so long: what its stages and transforms used of the cores, where
        that was looked at; then the time, the CPU time, the time in which threads waited for a core, and the
        files that were opened, each as often as it counts. The latter not where other threads used a core, and which
        ones is looked at from the next batch on."""
        cores: tuple[TransformTimes, ...] = ()
        if self.cores is not None:
            cores = core_entries(laps, self.cores, transform_s, self._counts_for)
        making = self._making
        opened = making.opened
        others_s = process_time() - self._process_s
        cpu_s = thread_time() - self._thread_s
        queued_s = queued_so_far() - self._queued_s
        others_s -= cpu_s
        least_s = max(OTHERS_S, OTHERS_FRAC * took_s)
        if self._is_main and others_s > least_s:
            if self._threads is None:
                making.looks_at_threads = True
                return cores
            others = self._of_other_threads(others_s)
            cpu_s += others.cpu_s
            queued_s += others.queued_s
        programs_s = programs_cpu_s() - self._programs_s
        if self._is_main and programs_s > least_s:
            cpu_s += programs_s
            queued_s = math.nan
        work = (took_s, cpu_s, queued_s, opened)
        counted = tuple([self._counts_for * of_batch for of_batch in work])
        return (*cores, (WORK, self._counts_for, counted))

    def _of_other_threads(self, others_s: float) -> ThreadTimes:
        """Returns what other threads used for the batch, of `others_s` in all: not vitprof's own, which
        sends events meanwhile."""
        begun = self._threads
        if not begun:  # no system that says it of each
            return ThreadTimes(others_s, math.nan)
        before = self._making.threads_before
        of_python = python_threads()
        no_work = {threading.get_native_id(), *native_ids()}
        cpu_s = queued_s = 0.0
        for number, now in thread_times().items():
            at_begin = begun.get(number, ThreadTimes(0.0, 0.0))
            at_end_before = before.get(number, at_begin)
            is_idle_before = at_begin.cpu_s - at_end_before.cpu_s < OTHERS_S
            if number not in no_work and (number in of_python or is_idle_before):
                cpu_s += now.cpu_s - at_begin.cpu_s
                queued_s += now.queued_s - at_begin.queued_s
        return ThreadTimes(cpu_s, queued_s)


def programs_cpu_s() -> float:
    """Returns the CPU time of the programs that this process started, and waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def python_threads() -> frozenset[int | None]:
    """Returns the numbers of the threads that Python has started."""
    return frozenset(thread.native_id for thread in threading.enumerate())


def thread_times() -> dict[int, ThreadTimes]:
    """Returns what each thread of this process has used so far, by its number; nothing where the system does not
    say it."""
    times = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(TASKS):
            with contextlib.suppress(OSError, ValueError):  # it has ended
                cpu_ns, queued_ns = read_schedstat(f"{TASKS}/{number}/schedstat")
                times[int(number)] = ThreadTimes(cpu_ns / 1e9, queued_ns / 1e9)
    return times


def read_schedstat(path: str) -> tuple[int, int]:
    """Returns for how long a thread has used a core, and waited for one (ns)."""
    schedstat = os.open(path, os.O_RDONLY)
    try:
        used, queued, *_ = os.read(schedstat, 100).split()
        return int(used), int(queued)
    finally:
        os.close(schedstat)


def timed_fetch(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a replacement for a fetcher's `fetch` that notes how it made the batch, unless inside another one."""

    def fetch_timed(self: Any, index: Any) -> Any:
        making = MAKING.now
        # none in a fetcher that was made before the hooks: a script may call vitprof.watch in mid-iteration
        worker = getattr(self, "_vitprof_worker", None)
        if making.laps is not None or worker is None:
            return fetch(self, index)
        maker = PROCESS.maker
        if maker is not None:
            maker.begin(perf_counter())
        making.collate_s = 0.0
        making.waited_s = 0.0
        making.batches += 1
        counts_for = look_counts_for(making.batches)
        work = MakingUse(making, counts_for, index) if counts_for else None
        clock: SampleClock | None = self._vitprof_clock
        timed = None
        if clock is not None and clock.is_worth_it:
            timed = sample_timer(clock, self.dataset, making, len(index))
        laps = making.laps = {}
        began_s = perf_counter()
        try:
            data = fetch(self, index) if timed is None else _with_dataset(timed, fetch, self, index)
        finally:
            making.laps = None
            if work is not None:
                work.end_look()
        ended_s = perf_counter()
        began_s += making.waited_s  # as if those waits came first
        collate_s = making.collate_s
        dataset_s = ended_s - began_s - collate_s
        transform_s = 0.0
        transforms: tuple[TransformTimes, ...] = ()
        if laps:
            transforms = transform_sums(laps)
            transform_s = sum(map(sum, map(SECONDS_OF, transforms)))
        making.took_s = ended_s - began_s
        if work is not None:
            transforms += work.entries(laps, making.took_s, transform_s)
        if making.looks_at_threads and look_counts_for(making.batches + 1):
            making.threads_before = thread_times()
        samples = None
        if clock is not None:
            clock.add_batch(len(index), dataset_s)
            samples = None if timed is None else clock.times_of(timed, queued_for(timed))
        if maker is not None:
            maker.made(max(0.0, dataset_s - transform_s), transform_s, collate_s)
        if worker < 0:
            making.times = (
                dataset_s, transform_s, collate_s, began_s, ended_s, worker, transforms, samples, None, None
            )  # fmt: skip
            return data
        says, pickled = said_with_batch(self)
        times = (
            dataset_s, transform_s, collate_s, began_s, ended_s, worker, transforms, samples, says, pickled
        )  # fmt: skip
        return data, bytes_to_send(times)

    return fetch_timed


def said_with_batch(fetcher: Any) -> tuple[WorkerSays | None, PickleTimes | None]:
    """Returns what this process, a worker, says of itself, and what it took to pickle earlier batches; None for what is
    not said with this one."""
    clock: PicklingClock | None = getattr(fetcher, "_vitprof_pickling", None)
    return said_at_first(fetcher), None if clock is None else clock.taken()


def bytes_to_send(times: FetchTimes) -> bytes:
    """Returns the bytes that a worker sends with a batch, after the pause that is due before it passes that on."""
    *numbers, ended_s, worker, transforms, samples, says, pickled = times
    rest: tuple[Any, ...] = ()
    if transforms or samples is not None or says is not None or pickled is not None:
        rest = (transforms, samples, says, pickled)
    maker = PROCESS.maker
    if maker is not None:
        ended_s = maker.pass_on()
        rest = (transforms, samples, says, pickled, maker.ledger.settled_s)
    packed = SENT.pack(MARK, *numbers, ended_s, worker)
    return packed + marshal.dumps(rest) if rest else packed


def core_entries(
    laps: dict[int, Laps], stages: tuple[CoreTimes, CoreTimes], transform_s: float, counts_for: int
) -> tuple[TransformTimes, ...]:
    """Returns what a batch used of the cores in its stages, and in the transforms of each Compose that was looked at;
    each as often as it counts."""
    dataset, collate = stages
    numbers = (*dataset, *collate, transform_s)
    entries: list[TransformTimes] = [
        (CORES_OF_STAGES, counts_for, tuple([counts_for * number for number in numbers]))
    ]
    for lap in laps.values():
        if lap.looked_calls:
            used = tuple([counts_for * seconds for each in lap.used for seconds in each])
            calls = counts_for * lap.looked_calls
            entries.append(((CORES_OF_COMPOSE, *lap.names), calls, used))
    return tuple(entries)


def sample_clock(fetcher: Any) -> SampleClock | None:
    """Returns a clock for the samples of a fetcher; None where it does not ask a dataset for each of a list of
    indices."""
    is_of_indices = fetcher.auto_collation and type(fetcher).__name__ == "_MapDatasetFetcher"
    return clock_for(fetcher.dataset) if is_of_indices else None


def sample_timer(
    clock: SampleClock, dataset: Any, making: MakingTimes, samples: int
) -> SampleTimer:
    """Returns a timer for the samples of a batch that begins."""
    timed = SampleTimer(dataset, making)
    if clock.takes_long(samples):
        timed.queued_s = queued_so_far()
    return timed


def queued_for(timed: SampleTimer) -> float:
    """Returns for how long this thread waited for a core while it made a batch; 0 where that is not known."""
    if math.isnan(timed.queued_s):
        return 0.0
    queued_s = queued_so_far() - timed.queued_s
    return 0.0 if math.isnan(queued_s) else queued_s


def _with_dataset(
    timed: SampleTimer, fetch: Callable[[Any, Any], Any], fetcher: Any, index: Any
) -> Any:
    """Fetches a batch from samples that are timed."""
    dataset = fetcher.dataset
    fetcher.dataset = timed
    try:
        return fetch(fetcher, index)
    finally:
        fetcher.dataset = dataset


def queued_so_far() -> float:
    """Returns how long this thread has waited for a core so far (s); NaN where Linux does not count that."""
    try:
        _, queued_ns = read_schedstat("/proc/thread-self/schedstat")
    except (OSError, ValueError):
        return math.nan
    return queued_ns / 1e9


def unpacked(batch: Any) -> tuple[Any, FetchTimes | None]:
    """Returns the batch in what an iterator has just returned to this thread, and how it was made, if that is known."""
    kind = type(batch)
    if (kind is tuple or kind is list) and len(batch) == 2:
        sent = batch[1]
        if type(sent) is bytes and sent.startswith(MARK):
            return batch[0], _read(sent)
    making = MAKING.now
    times = making.times
    making.times = None
    return batch, times


def _read(sent: bytes) -> FetchTimes:
    _, dataset_s, transform_s, collate_s, began_s, ended_s, worker = SENT.unpack_from(sent)
    transforms, samples, says, pickled, *_ = _rest(sent) or ((), None, None, None)
    return (
        dataset_s, transform_s, collate_s, began_s, ended_s, worker, transforms, samples, says, pickled
    )  # fmt: skip


def _rest(sent: bytes) -> tuple[Any, ...]:
    return tuple(marshal.loads(sent[SENT.size :])) if len(sent) > SENT.size else ()


def passed_on(delivered: Any) -> tuple[float, float] | None:
    """Returns when a worker passed on what it has sent, and what it had settled by then; None where that is not
    known, as of an error."""
    sent = delivered[1] if isinstance(delivered, (tuple, list)) and len(delivered) == 2 else None
    if not (type(sent) is bytes and sent.startswith(MARK)):
        return None
    _, _, _, _, _, ended_s, _ = SENT.unpack_from(sent)
    *_, settled_s = _rest(sent) or (None,)
    return (ended_s, settled_s) if isinstance(settled_s, float) else None


def transform_sums(laps: dict[int, Laps]) -> tuple[TransformTimes, ...]:
    if len(laps) == 1:  # most datasets have one, and this runs once for each batch
        (lap,) = laps.values()
        return ((tuple(lap.names), lap.calls, tuple(lap.seconds)),) if lap.calls else ()
    by_names: dict[tuple[str, ...], Laps] = {}
    for lap in laps.values():
        if not lap.calls:  # every call failed, and the dataset caught the error
            continue
        names = tuple(lap.names)
        if (known := by_names.setdefault(names, lap)) is not lap:
            known.calls += lap.calls
            known.seconds = [a + b for a, b in zip(known.seconds, lap.seconds, strict=True)]
    return tuple([(names, lap.calls, tuple(lap.seconds)) for names, lap in by_names.items()])


@contextlib.contextmanager
def transform_times() -> Iterator[dict[str, float]]:
    """Gives a dict; in the end it has the seconds that this thread spent meanwhile in each transform,
    by its name.
    """
    seconds_of: dict[str, float] = {}
    laps: dict[int, Laps] = {}
    making = MAKING.now
    making.laps = laps
    try:
        yield seconds_of
    finally:
        making.laps = None
    for names, _, seconds in transform_sums(laps):
        for name, spent in zip(names, seconds, strict=True):
            seconds_of[name] = seconds_of.get(name, 0.0) + spent


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
        laps_of = making.laps
        if laps_of is None:
            return call(self, *inputs, **named)
        laps = laps_of.get(id(self)) or laps_of.setdefault(id(self), Laps(self))
        seconds, in_turn = laps.seconds, is_known and not named
        look = making.look
        used = None if look is None else look.begin_call()
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
                if look is not None and used is not None:
                    used.append(look.now())
                if i < len(seconds):
                    seconds[i] += ended - began
                else:
                    began = laps.first(transform if in_turn else self, ended - began)
                    continue
                began = ended
            laps.calls += 1
            if used is not None:
                laps.add_use(used)
            return outputs
        finally:
            making.laps = laps_of

    return call_timed


def name_of(transform: Any) -> str:
    """Returns the name of a transform: the function's, also in a `functools.partial`, else its class's."""
    kind = type(transform)
    if kind is functools.partial:
        return name_of(transform.func)
    return str(
        transform.__name__ if kind in NAMED or isinstance(transform, type) else kind.__name__
    )[:MAX_NAME]
