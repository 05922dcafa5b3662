"""How long it takes to unpickle what workers send."""

from __future__ import annotations

import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from vitprof.watch.patches import unpickling
from vitprof.watch.patches.unpickling import BATCHES, MOST_BATCHES, MOST_WAITING, SKIPPED

TRAIN, TEST = 7, 8
TAKES_S = 0.002


class Clock:
    """A clock that unpickling moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def loads(self, value: Any) -> Any:
        self.now_s += TAKES_S
        return value


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    clock = Clock()
    monkeypatch.setattr(ForkingPickler, "loads", clock.loads)
    monkeypatch.setattr(unpickling, "perf_counter", clock)
    return []


def test_a_mean_of_some_batches_is_told_once_for_each_loader(told: list[dict[str, Any]]) -> None:
    clock = unpickling.UnpicklingClock(told.append)
    for number in range(SKIPPED + 2 * BATCHES):
        for loader in (TRAIN, TEST):
            ForkingPickler.loads((number, "a batch"))
            ForkingPickler.loads("something else")
            assert clock.received(loader)
    each = {"unpickle_s": pytest.approx(TAKES_S), "unpickled_in": "training"}
    assert told == [{"loader": TRAIN, **each}, {"loader": TEST, **each}]


def test_a_thread_that_pins_unpickles(told: list[dict[str, Any]]) -> None:
    clock = unpickling.UnpicklingClock(told.append)
    for number in range(SKIPPED + BATCHES):
        pins = threading.Thread(target=ForkingPickler.loads, args=((number, "a batch"),))
        pins.start()
        pins.join()
        clock.received(TRAIN)
    assert [facts["unpickled_in"] for facts in told] == ["pinning"]


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
