"""What is said of a batch on its way, and of each transform, by torchvision's loops word for word."""

from __future__ import annotations

import functools
import math
import operator
import pickle
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data._utils.pin_memory import pin_memory

from vitprof.measure import core_use
from vitprof.watch import fetch_times
from vitprof.watch.fetch_times import (
    MAKING,
    MARK,
    timed_compose,
    timed_fetch,
    transform_times,
    unpacked,
)


class Batch:
    """A batch of a user's own class; it can be pinned."""

    pinned = False

    def pin_memory(self) -> Batch:
        self.pinned = True
        return self


def fetched(batch: Any, worker: int) -> Any:
    fetcher = SimpleNamespace(_vitprof_worker=worker, _vitprof_clock=None)
    return timed_fetch(lambda _self, _index: batch)(fetcher, 0)


def test_a_fetcher_that_was_made_before_the_hooks_fetches_as_ever() -> None:
    """A script that called vitprof.watch in the middle of an iteration without workers ended with our error."""
    batch = Batch()
    assert timed_fetch(lambda _self, _index: batch)(SimpleNamespace(), 0) is batch
    assert unpacked(batch) == (batch, None)


def test_a_batch_of_a_worker_brings_its_times_through_queue_and_pinning_thread() -> None:
    sent = pickle.loads(pickle.dumps(fetched(Batch(), 3)))
    batch, times = unpacked(pin_memory(sent))
    assert (type(batch), batch.pinned) == (Batch, True)
    assert times is not None
    assert (times[5], [names for names, *_ in times[6]]) == (3, [fetch_times.WORK])
    assert 0.0 <= times[0] <= times[4] - times[3]


def test_a_batch_made_in_the_loop_is_itself_and_its_times_are_taken_once() -> None:
    made = Batch()
    batch, times = unpacked(fetched(made, -1))
    assert batch is made
    assert times is not None
    assert times[5] == -1
    for other in (made, (MARK,), [1, 2], ("a", b"b"), (1, "vitprof:"), {0: MARK}, None):
        assert unpacked(other) == (other, None), "any other is left as it is"


@pytest.mark.parametrize("n", [64, 1024])
def test_the_work_on_a_batch_is_looked_at_ever_less_and_counts_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(core_use, "EVERY", 4)
    monkeypatch.setattr(core_use, "LATER", 32)
    monkeypatch.setattr(MAKING.now, "batches", 0)
    counted = list[int]()
    for _ in range(n):
        _, times = unpacked(fetched(Batch(), 0))
        assert times is not None
        counted += [calls for names, calls, _ in times[6] if names == fetch_times.WORK]
    assert sum(counted) == n / 4
    assert len(counted) == {64: 16, 1024: 16 + 30}[n]


@pytest.mark.parametrize("n_loaders", [2, 3, 4, 5, 8])
def test_the_work_on_batches_of_loaders_in_turn_is_looked_at_of_each(
    monkeypatch: pytest.MonkeyPatch, n_loaders: int
) -> None:
    """Of two zipped loaders it was always the same one: nothing was known of the other, which waited."""
    monkeypatch.setattr(core_use, "EVERY", 4)
    monkeypatch.setattr(core_use, "LATER", 32)
    counted = [0] * n_loaders
    for batch in range(1, 1025):
        counted[batch % n_loaders] += core_use.look_counts_for(batch)
    assert sum(counted) == 1024 / 4
    assert min(counted) > 0.4 * 256 / n_loaders


class Compose:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, img):  # type: ignore[no-untyped-def]
        for t in self.transforms:
            img = t(img)
        return img


class ComposeV2(Compose):
    def __call__(self, *inputs: Any) -> Any:
        needs_unpacking = len(inputs) > 1
        for transform in self.transforms:
            outputs = transform(*inputs)
            inputs = outputs if needs_unpacking else (outputs,)
        return outputs


class ComposeOfTomorrow(Compose):
    def __call__(self, image: Any, /) -> Any:
        return functools.reduce(lambda value, t: t(value), self.transforms, image)


class Wait:
    def __init__(self, clock: SimpleNamespace, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def __call__(self, *value: Any) -> Any:
        self.clock.now += self.seconds
        return value if len(value) > 1 else value[0]


class Resize(Wait):
    pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Moves when a transform says so."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(fetch_times, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture(autouse=True)
def _patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(core_use, "EVERY", 1)
    monkeypatch.setattr(core_use, "LATER", 1)
    monkeypatch.setattr(fetch_times, "look_at", lambda _index: None)
    # other threads of the tests' own
    monkeypatch.setattr(fetch_times, "process_time", lambda: 0.0)
    for kind in (Compose, ComposeV2, ComposeOfTomorrow):
        monkeypatch.setattr(kind, "__call__", timed_compose(kind.__call__))
    yield
    assert MAKING.now.laps is None


def made(make: Callable[[], Any]) -> fetch_times.FetchTimes:
    fetcher = SimpleNamespace(_vitprof_worker=-1, _vitprof_clock=None)
    _, times = fetch_times.unpacked(timed_fetch(lambda _self, _index: make())(fetcher, 0))
    assert times is not None
    *transforms, (names, _, (took_s, cpu_s, queued_s, opened)) = times[6]
    assert (names, took_s, opened) == (fetch_times.WORK, times[4] - times[3], 0.0)
    assert cpu_s >= 0
    assert 0 <= queued_s < 1, "of this thread, by Linux"
    return (*times[:6], tuple(transforms), None)


def test_files_that_vitprof_opens_itself_are_not_those_of_the_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux says in a file how long a thread has waited for a core. Of any dataset it was said that most of
    the work is reading and decoding files, and of one that waits for a thread, within which a hook looks at that."""

    def queued_s() -> float:
        fetch_times.count_opened("open", ("/proc/thread-self/schedstat", None, 0))
        return 0.0

    monkeypatch.setattr(fetch_times, "queued_so_far", queued_s)
    made(queued_s)  # says that no file was opened
    counted = MAKING.now.opened
    fetch_times.count_opened("open", (3, "rb", 0))
    assert MAKING.now.opened == counted + 1


OF_PYTHON, OF_ANOTHER_LIBRARY, OF_VITPROF = 11, 12, 13
"""Threads of a process beside its main one."""


class Machine:
    """What the threads of a process have used of a core, for which each waited twice as long as it used it."""

    def __init__(self, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = clock
        self._used_s = dict.fromkeys((OF_PYTHON, OF_ANOTHER_LIBRARY, OF_VITPROF), 0.0)
        self._main_s = 0.0
        for name, answer in {
            "thread_time": lambda: self._main_s,
            "queued_so_far": lambda: 2 * self._main_s,
            "process_time": lambda: self._main_s + sum(self._used_s.values()),
            "programs_cpu_s": lambda: 0.0,
            "python_threads": lambda: frozenset([OF_PYTHON]),
            "native_ids": lambda: frozenset([OF_VITPROF]),
            "thread_times": lambda: {
                number: fetch_times.ThreadTimes(used_s, 2 * used_s)
                for number, used_s in self._used_s.items()
            },
        }.items():
            monkeypatch.setattr(fetch_times, name, answer)
        monkeypatch.setattr(MAKING.now, "looks_at_threads", False)

    def uses(self, thread: int, seconds: float) -> None:
        self._used_s[thread] += seconds

    def makes_a_batch(self, thread: int, seconds: float) -> list[tuple[float, ...]]:
        """Makes a batch in a second, for which the main thread uses 1/16 s; returns what is said of it."""

        def make() -> None:
            self._clock.now += 1.0
            self._main_s += 0.0625
            self.uses(thread, seconds)

        fetch = timed_fetch(lambda _self, _index: make())
        fetcher = SimpleNamespace(_vitprof_worker=-1, _vitprof_clock=None)
        _, times = unpacked(fetch(fetcher, 0))
        assert times is not None
        return [work for names, _, work in times[6] if names == fetch_times.WORK]


@pytest.fixture
def machine(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(clock, monkeypatch)


@pytest.mark.parametrize("thread", [OF_PYTHON, OF_ANOTHER_LIBRARY])
def test_what_other_threads_do_for_a_batch_is_work(machine: Machine, thread: int) -> None:
    """A dataset leaves its work to an event loop in a thread, as zarr 3 does, or to blosc, and waits for that: it was
    "mostly waiting, not CPU work", with 7 workers "up to 8.2x", which by hand gained nothing."""
    assert machine.makes_a_batch(thread, 0.25) == [], (
        "which threads it is, is looked at from here on"
    )
    assert machine.makes_a_batch(thread, 0.25) == [(1.0, 0.3125, 0.625, 0.0)]


def test_a_thread_that_spins_after_the_work_of_a_training_does_nothing_for_a_batch(
    machine: Machine,
) -> None:
    """OpenMP's do for some milliseconds. The dataset mostly waits."""
    for number in range(3):
        machine.uses(OF_ANOTHER_LIBRARY, 0.5)
        said = machine.makes_a_batch(OF_ANOTHER_LIBRARY, 0.25)
        assert said == ([(1.0, 0.0625, 0.125, 0.0)] if number else [])


def test_what_vitprof_does_in_a_thread_of_its_own_is_no_work_on_a_batch(machine: Machine) -> None:
    """It sends events: a dataset that sleeps seemed to work."""
    machine.makes_a_batch(OF_VITPROF, 0.25)
    assert machine.makes_a_batch(OF_VITPROF, 0.25) == [(1.0, 0.0625, 0.125, 0.0)]


def test_what_a_process_does_for_itself_is_no_work_on_a_batch(machine: Machine) -> None:
    assert machine.makes_a_batch(OF_PYTHON, 0.03125) == [(1.0, 0.0625, 0.125, 0.0)]


def test_in_another_thread_than_the_main_one_its_own_work_counts(machine: Machine) -> None:
    """The main one may train meanwhile."""
    said = list[Any]()
    thread = threading.Thread(target=lambda: said.extend(machine.makes_a_batch(OF_PYTHON, 0.5)))
    thread.start()
    thread.join()
    assert said == [(1.0, 0.0625, 0.125, 0.0)]


def test_what_programs_do_for_a_batch_is_work(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as ffmpeg. How long they waited for a core is not known."""
    times = iter([0.0, 0.5])
    monkeypatch.setattr(fetch_times, "programs_cpu_s", lambda: next(times))
    (work,) = machine.makes_a_batch(OF_PYTHON, 0.0)
    assert work == pytest.approx((1.0, 0.5625, math.nan, 0.0), nan_ok=True)


def test_linux_says_what_each_thread_uses() -> None:
    if not fetch_times.thread_times():
        pytest.skip("this system does not say what a thread uses")
    used = fetch_times.thread_times()[threading.get_native_id()]
    assert used.cpu_s > 0.0
    assert threading.get_native_id() in fetch_times.python_threads()


@pytest.mark.parametrize("kind", [Compose, ComposeV2])
def test_each_transform_by_its_name(kind: type[Compose], clock: SimpleNamespace) -> None:
    inner = kind([Wait(clock, 0.5), Wait(clock, 0.25)])
    transforms = [
        Resize(clock, 1),
        Wait(clock, 2),
        inner,
        functools.partial(operator.mul, 2),
        lambda value: value,
    ]
    outer = kind(transforms)
    times = made(lambda: [outer(3), outer(4)])
    names = ("Resize", "Wait", kind.__name__, "mul", "<lambda>")
    assert times[6] == ((names, 2, (2.0, 4.0, 1.5, 0.0, 0.0)),)
    assert times[1] == 7.5, "the stage has all of it"
    assert outer(3) == 6, "outside of a batch it works, and counts nowhere"
    if kind is ComposeV2:
        both, values = ComposeV2([Wait(clock, 1), Wait(clock, 1)]), list[Any]()
        made(lambda: values.append(both(1, 2)))
        assert values == [(1, 2)], "several values go through"


def test_a_compose_that_works_otherwise_is_one_entry_and_one_made_for_each_sample_counts_with_its_like(
    clock: SimpleNamespace,
) -> None:
    other = ComposeOfTomorrow([Wait(clock, 1), Compose([Resize(clock, 2)])])
    assert made(lambda: [other(1), other(2)])[6] == ((("ComposeOfTomorrow",), 2, (6.0,)),)

    def make() -> None:
        for _ in range(3):
            Compose([Wait(clock, 1), Resize(clock, 2)])(0)
        Compose([Resize(clock, 4)])(0)

    assert made(make)[6] == ((("Wait", "Resize"), 3, (3.0, 6.0)), (("Resize",), 1, (4.0,)))


def test_a_transform_that_fails_fails_as_before(clock: SimpleNamespace) -> None:
    broken = Compose([Wait(clock, 1), lambda value: 1 / value, Wait(clock, 1)])
    with pytest.raises(ZeroDivisionError):
        made(lambda: broken(0))

    def make() -> None:
        with pytest.raises(ZeroDivisionError):
            broken(0)
        broken(1)

    ((names, calls, seconds),) = made(make)[6]
    assert (names, calls, seconds) == (("Wait", "<lambda>", "Wait"), 1, (2.0, 0.0, 1.0))


def test_a_loader_inside_a_dataset_belongs_to_the_batch(clock: SimpleNamespace) -> None:
    compose = Compose([Wait(clock, 1)])
    inner = timed_fetch(lambda _self, _index: compose(5))
    values: list[Any] = []
    times = made(lambda: values.append(inner(None, 0)))
    assert values == [5], "the batch alone"
    assert times[6] == ((("Wait",), 1, (1.0,)),)


def test_the_transforms_of_a_sample_that_is_read_apart_are_summed_by_name(
    clock: SimpleNamespace,
) -> None:
    with transform_times() as seconds:
        Compose([Wait(clock, 1), Resize(clock, 2)])(0)
        Compose([Resize(clock, 4)])(0)
    assert seconds == {"Wait": 1.0, "Resize": 6.0}
