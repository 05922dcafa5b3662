"""What it takes a worker to pickle the batches that it sends."""

from __future__ import annotations

import multiprocessing.reduction
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import pytest

from vitprof.watch import pickling
from vitprof.watch.fetch_times import timed_fetch, unpacked
from vitprof.watch.pickling import BATCHES, SKIPPED, PickledBatches, PicklingClock

TAKES_S, OF_CPU_S = 0.003, 0.002
MARK = b"vitprof:"


class Clock:
    """A clock that pickling moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.cpu_s = 0.0

    def dumps(self, _kind: Any, obj: Any, protocol: int | None = None) -> Any:
        self.now_s += TAKES_S
        self.cpu_s += OF_CPU_S
        return obj


@pytest.fixture(autouse=True)
def _each_takes_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(ForkingPickler, "dumps", classmethod(clock.dumps))
    monkeypatch.setattr(pickling, "perf_counter", lambda: clock.now_s)
    monkeypatch.setattr(pickling, "thread_time", lambda: clock.cpu_s)


@pytest.fixture
def clock() -> Iterator[PicklingClock]:
    clock = PicklingClock(MARK)
    yield clock
    clock.remove()


def send(number: int) -> Any:
    """Pickles a batch with its number, as a worker's queue does."""
    sent = (number, ("a batch", MARK + b"its times"))
    assert ForkingPickler.dumps(sent) is sent
    return sent


def test_some_batches_are_timed_after_the_first_and_no_more(clock: PicklingClock) -> None:
    for number in range(SKIPPED):
        send(number)
    assert clock.taken() is None, "what pickling needs is imported with them"
    send(2)
    send(3)
    assert clock.taken() == (2, pytest.approx(2 * TAKES_S), pytest.approx(2 * OF_CPU_S))
    assert clock.taken() is None, "these were sent"
    for number in range(4, 100):
        send(number)
    assert clock.taken() == (6, pytest.approx(6 * TAKES_S), pytest.approx(6 * OF_CPU_S))


def test_it_takes_itself_away(clock: PicklingClock) -> None:
    timed = vars(ForkingPickler)["dumps"]
    for number in range(SKIPPED + BATCHES):
        assert vars(ForkingPickler)["dumps"] is timed
        send(number)
    assert vars(ForkingPickler)["dumps"] is not timed
    other = PicklingClock(MARK)
    later = PicklingClock(MARK)
    other.remove()
    assert vars(ForkingPickler)["dumps"] is later._dumps, "another tool's stays"
    later.remove()
    other.remove()


def test_what_is_no_batch_of_a_worker_is_not_timed(clock: PicklingClock) -> None:
    for other in ((1, "x"), (1, ("a batch", b"bytes")), [1, ("a batch", MARK)], 7, (None, None)):
        for _ in range(2 * BATCHES):
            assert ForkingPickler.dumps(other) is other
    assert clock.taken() is None


def test_a_class_derived_from_the_pickler_is_given_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = []

    def dumps(kind: Any, obj: Any) -> Any:
        kinds.append(kind)
        return obj

    class Own(ForkingPickler):
        """A pickler of the script's."""

    monkeypatch.setattr(multiprocessing.reduction.ForkingPickler, "dumps", classmethod(dumps))
    clock = PicklingClock(MARK)
    Own.dumps((0, ("a batch", MARK)))
    Own.dumps("something else")
    clock.remove()
    assert kinds == [Own, Own]


def test_an_error_of_pickling_is_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_kind: Any, _obj: Any) -> Any:
        raise TypeError("cannot pickle")

    monkeypatch.setattr(ForkingPickler, "dumps", classmethod(fail))
    clock = PicklingClock(MARK)
    with pytest.raises(TypeError, match="cannot pickle"):
        send(0)
    clock.remove()


def test_it_is_sent_with_the_times_of_a_later_batch(clock: PicklingClock) -> None:
    fetcher = SimpleNamespace(_vitprof_worker=1, _vitprof_clock=None, _vitprof_pickling=clock)
    fetch = timed_fetch(lambda _self, _index: "a batch")
    sent = []
    for number in range(SKIPPED + 3):
        made = fetch(fetcher, 0)
        ForkingPickler.dumps((number, made))
        _, times = unpacked(made)
        assert times is not None
        sent.append(times[-1])
    one = (1, pytest.approx(TAKES_S), pytest.approx(OF_CPU_S))
    assert sent == [None, None, None, one, one]


def test_the_workers_of_a_loader_make_one_mean() -> None:
    """Each makes a few batches of a short epoch."""
    of_loader = PickledBatches()
    assert of_loader.add((BATCHES - 1, 0.007, 0.006)) is None
    assert of_loader.add((1, 0.001, 0.002)) == {
        "pickle_s": pytest.approx(0.008 / BATCHES),
        "pickle_cpu_s": pytest.approx(0.008 / BATCHES),
    }
    assert of_loader.add((1, 0.1, 0.1)) is None, "it is told once"
