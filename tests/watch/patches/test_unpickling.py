"""How long it takes to unpickle what workers send."""

from __future__ import annotations

import itertools
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from vitprof.watch.patches import unpickling
from vitprof.watch.patches.unpickling import BATCHES, MOST_BATCHES, MOST_WAITING, SKIPPED

TRAIN, TEST = 7, 8
TAKES_S, OF_CPU_S = 0.002, 0.001


class Clock:
    """A clock that unpickling moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.cpu_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def loads(self, value: Any) -> Any:
        self.now_s += TAKES_S
        self.cpu_s += OF_CPU_S
        return value


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    clock = Clock()
    monkeypatch.setattr(ForkingPickler, "loads", clock.loads)
    monkeypatch.setattr(unpickling, "perf_counter", clock)
    monkeypatch.setattr(unpickling, "thread_time", lambda: clock.cpu_s)
    return []


def test_a_mean_of_some_batches_is_told_once_for_each_loader(told: list[dict[str, Any]]) -> None:
    clock = unpickling.UnpicklingClock(told.append)
    for number in range(SKIPPED + 2 * BATCHES):
        for loader in (TRAIN, TEST):
            ForkingPickler.loads((number, "a batch"))
            ForkingPickler.loads("something else")
            assert clock.received(loader)
    each = {
        "unpickle_s": pytest.approx(TAKES_S),
        "unpickle_cpu_s": pytest.approx(OF_CPU_S),
        "unpickled_in": "training",
    }
    assert told == [{"loader": TRAIN, **each}, {"loader": TEST, **each}]


def test_a_thread_that_pins_unpickles(told: list[dict[str, Any]]) -> None:
    clock = unpickling.UnpicklingClock(told.append)
    for number in range(SKIPPED + BATCHES):
        pins = threading.Thread(target=ForkingPickler.loads, args=((number, "a batch"),))
        pins.start()
        pins.join()
        clock.received(TRAIN)
    assert [facts["unpickled_in"] for facts in told] == ["pinning"]


def test_what_the_thread_that_pins_uses_while_the_loop_works_is_told(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for how long it waits for a core then. What it does while the loop waits for a batch does not count."""
    used_ns = itertools.count(1_000_000_000, 3_000_000)

    def read(_path: str) -> tuple[int, int]:
        now_ns = next(used_ns)
        return now_ns, 2 * now_ns

    monkeypatch.setattr(unpickling, "read_schedstat", read)
    clock = unpickling.UnpicklingClock(told.append)
    for number in range(SKIPPED + BATCHES):
        clock.requested(TRAIN)
        pins = threading.Thread(target=ForkingPickler.loads, args=((number, "a batch"),))
        pins.start()
        pins.join()
        next(used_ns)  # what it used as the loop waited
        clock.received(TRAIN)
    (facts,) = told
    assert facts["pinning_cpu_s"] == pytest.approx(0.003)
    assert facts["pinning_queued_s"] == pytest.approx(0.006)


def test_without_a_thread_that_pins_none_is_looked_at(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str) -> tuple[int, int]:
        raise AssertionError(path)

    monkeypatch.setattr(unpickling, "read_schedstat", read)
    clock = unpickling.UnpicklingClock(told.append)
    for number in range(SKIPPED + BATCHES):
        clock.requested(TRAIN)
        ForkingPickler.loads((number, "a batch"))
        clock.received(TRAIN)
    assert "pinning_cpu_s" not in told[0]


def test_a_thread_that_is_not_there_has_used_nothing_that_is_known() -> None:
    assert unpickling.used_by(0) is None
    assert unpickling.used_by(2**22 + 1) is None, "more than Linux numbers"


def test_a_worker_keeps_little_of_what_it_unpickles(told: list[dict[str, Any]]) -> None:
    clock = unpickling.UnpicklingClock(told.append)
    for number in range(2 * MOST_WAITING):
        assert ForkingPickler.loads((number, [1, 2])) == (number, [1, 2])
    assert len(clock._unpickled) == MOST_WAITING


def test_it_ends_after_some_batches_and_takes_itself_back(told: list[dict[str, Any]]) -> None:
    before = ForkingPickler.loads
    clock = unpickling.UnpicklingClock(told.append)
    assert ForkingPickler.loads != before
    assert [clock.received(TRAIN) for _ in range(MOST_BATCHES)].count(False) == 1
    assert not told, "nothing was unpickled"
    clock.remove()
    assert ForkingPickler.loads == before
    other = unpickling.UnpicklingClock(told.append)
    later = unpickling.UnpicklingClock(told.append)
    other.remove()
    assert ForkingPickler.loads == later._timed, "another tool's stays"
