"""When a script that waits is looked at, and what is kept of that."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from vitprof.jobs import late_batches
from vitprof.jobs.late_batches import (
    FEWEST_TIMES,
    FIRST_LOOKS_S,
    LOOKS_FRAC,
    MOST_LOOKS,
    MOST_PENDING,
    LateBatchRecorder,
    LookTaker,
    ScriptWatch,
    UsualWaits,
)
from vitprof.measure.wire import Note
from vitprof.telemetry.looks import Look, ProcessLook
from vitprof.watch.core.late_batches import LATE_S
from vitprof.watch.events import PENDING_MARK

LOOP, WORKER = 70, 71


class Script:
    """A script that waits at times that the test says."""

    def __init__(self, usual_s: float = 0.001) -> None:
        self.now_s = 100.0
        self.usual = UsualWaits()
        self.usual.add([usual_s] * FEWEST_TIMES)
        self.looked_s: list[float] = []
        self.look_takes_s = 0.0
        """CPU time."""
        self.taker = LookTaker(self._look, self.usual, lambda: self.cpu_s)
        self.cpu_s = 0.0

    def _look(self, is_first: bool) -> Look:
        self.looked_s.append(self.now_s)
        self.cpu_s += self.look_takes_s
        loop = ProcessLook(LOOP, "S", at_s=self.now_s)
        return Look(self.now_s, (loop, ProcessLook(WORKER, "D", at_s=self.now_s)))

    def wait(self, seconds: float, every_s: float = 0.05) -> float:
        """Waits for a batch, while somebody checks; returns when it began."""
        began_s = self.now_s
        while self.now_s < began_s + seconds:
            self.taker.check(began_s, self.now_s)
            self.now_s += every_s
        self.taker.check(0.0, self.now_s)
        return began_s


def test_a_wait_is_looked_at_once_it_is_late_and_then_more_and_more_rarely() -> None:
    script = Script()
    began_s = script.wait(2.0)
    after_s = [looked_s - began_s for looked_s in script.looked_s]
    assert after_s[0] == pytest.approx(LATE_S, abs=0.051)
    gaps = [b - a for a, b in itertools.pairwise(after_s)]
    assert gaps == sorted(gaps)
    assert gaps[0] == pytest.approx(0.1, abs=0.051)
    wait = script.taker.taken([began_s])
    assert wait is not None
    assert len(wait.looks) == len(after_s) == 7


def test_the_next_look_is_due_when_a_wait_becomes_late() -> None:
    script = Script()
    began_s = script.now_s
    assert script.taker.check(0.0, began_s) == math.inf
    assert script.taker.check(began_s, began_s + 0.04) == pytest.approx(LATE_S - 0.04)
    assert not script.looked_s
    gap_s = script.taker.check(began_s, began_s + LATE_S)
    assert len(script.looked_s) == 1
    assert script.taker.check(began_s, began_s + LATE_S + gap_s / 2) == pytest.approx(gap_s / 2)
    script.taker.check(began_s, began_s + LATE_S + gap_s)
    assert len(script.looked_s) == 2


def test_a_wait_that_is_usual_is_not_looked_at() -> None:
    script = Script(usual_s=0.2)
    script.wait(0.4)
    assert not script.looked_s
    script.wait(1.0)
    assert script.looked_s


def test_late_batches_do_not_become_usual_where_they_are_few() -> None:
    usual = UsualWaits()
    usual.add([0.001] * 93 + [2.0] * 7)
    assert usual.late_s == LATE_S
    usual.add([2.0] * 7)
    assert usual.late_s > 2.0


def test_before_it_is_known_what_is_usual_nothing_is_late() -> None:
    usual = UsualWaits()
    usual.add([0.001] * (FEWEST_TIMES - 1) + [float("nan")] * 9)
    script = Script()
    script.taker = LookTaker(script._look, usual)
    script.wait(5.0)
    assert not script.looked_s


def test_looks_and_what_is_kept_of_them_are_bounded() -> None:
    script = Script()
    began_s = script.wait(600.0, every_s=0.5)
    assert len(script.looked_s) == MOST_LOOKS
    for _ in range(MOST_PENDING):
        script.wait(0.3)
    assert script.taker.taken([began_s]) is None, "it was the first of too many"


def test_looks_take_little_of_a_core_in_the_long_run() -> None:
    """With 32 workers a look takes 10 ms, and seven of them for each of thousands of late batches would
    take 3% of a core."""
    script = Script()
    script.look_takes_s = 0.01
    waits = []
    for _ in range(600):
        began_s = script.wait(2.0)
        waits.append(script.taker.taken([began_s]))
    kept = [wait for wait in waits if wait is not None]
    assert len(kept) == 600, "those that nothing is seen of are counted"
    assert all(wait.looks for wait in kept[:7])
    n_looks = {len(wait.looks) for wait in kept}
    assert n_looks == {0, 7}, "a wait is looked at as long as it lasts, or not at all"
    allowed_s = FIRST_LOOKS_S + LOOKS_FRAC * 600 * 2.0
    assert allowed_s < script.cpu_s < allowed_s + 7 * script.look_takes_s
    assert any(wait.looks for wait in kept[-60:]), "a new cause is seen sooner or later"


class Watch:
    """Passes for a `ScriptWatch`, without a thread or a process."""

    made: ClassVar[list[Watch]] = []

    def __init__(self, pid: int, descriptor: int, usual: UsualWaits, clock: Any) -> None:
        if descriptor < 0:
            raise OSError("it shows nothing")
        self.pid = pid
        self.script = Script()
        self.taker = self.script.taker
        self.workers: list[int] = []
        self.is_stopped = False
        self.error = None
        Watch.made.append(self)

    def add_workers(self, pids: list[int]) -> None:
        self.workers = pids

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Watch]]:
    monkeypatch.setattr(late_batches, "ScriptWatch", Watch)
    yield Watch.made
    Watch.made.clear()


def late(requested_s: float, waited_s: float, step: int = 9) -> dict[str, Any]:
    made = {"begun_s": requested_s, "made_s": requested_s + waited_s}
    who = {"worker": 0, "pid": WORKER}
    return {"step": step, "requested_s": [requested_s], "waited_s": waited_s, **made, **who}


def test_looks_and_events_meet_by_the_moment_of_the_request(watches: list[Watch]) -> None:
    recorder = LateBatchRecorder()
    recorder.receive(Note("workers_begun", {"pids": [WORKER]}))
    recorder.receive(Note("looked_at", {"pid": LOOP, "descriptor": 9}))
    (watch,) = watches
    assert watch.workers == [WORKER]
    began_s = watch.script.wait(1.0)
    assert recorder.facts() == {}, "which step waited is not known yet"
    batches = [late(began_s - 1.0, 0.4, step=8), late(began_s, 1.0)]
    recorder.receive(Note("late", {"batches": batches}))
    told = recorder.facts()["late_batches"]
    assert (told["late"], told["waited_s"]) == (1, 1.0)
    (batch,) = told["listed"]
    assert (batch["step"], batch["worker"], batch["made_meanwhile"]) == (9, 0, True)
    assert set(batch["maker"]["doing"]) == {"drive"}
    assert set(batch["loop"]["doing"]) == {"asleep"}
    assert recorder.facts() == {}, "it is told once"
    recorder.stop()
    assert watch.is_stopped


def test_how_long_a_batch_took_to_make_is_kept_beside_what_is_usual(watches: list[Watch]) -> None:
    recorder = LateBatchRecorder()
    recorder.follow(LOOP, 9)
    begun_s = np.arange(FEWEST_TIMES, dtype=float)
    steps = {"made_start_s": begun_s, "made_end_s": begun_s + 0.04}
    recorder.add_steps(steps)
    recorder.add_late([late(watches[0].script.wait(1.0), 1.0)])
    (batch,) = recorder.facts()["late_batches"]["listed"]
    assert batch["making_s"] == pytest.approx(1.0)
    assert batch["usual_making_s"] == pytest.approx(0.04, rel=0.1)


def test_a_late_batch_that_was_not_looked_at_is_counted(watches: list[Watch]) -> None:
    recorder = LateBatchRecorder()
    recorder.follow(LOOP, 9)
    script = watches[0].script
    script.look_takes_s = 2 * FIRST_LOOKS_S
    batches = [late(script.wait(0.15), 0.15, step) for step in range(2)]
    recorder.add_late(batches)
    told = recorder.facts()["late_batches"]
    assert (told["late"], len(told["listed"])) == (2, 1)
    assert told["waited_s"] == pytest.approx(0.3)


def test_a_batch_that_was_made_before_is_one_that_is_handed_over(watches: list[Watch]) -> None:
    recorder = LateBatchRecorder()
    recorder.follow(LOOP, 9)
    began_s = watches[0].script.wait(1.0)
    recorder.add_late([{**late(began_s, 1.0), "made_s": began_s + 0.2}])
    (batch,) = recorder.facts()["late_batches"]["listed"]
    assert not batch["made_meanwhile"]


def test_a_script_that_shows_nothing_has_the_reason(watches: list[Watch]) -> None:
    recorder = LateBatchRecorder()
    recorder.follow(LOOP, -1)
    recorder.add_late([late(1.0, 1.0)])
    assert recorder.facts() == {
        "late_batches": {
            "late": 0,
            "waited_s": 0.0,
            "listed": [],
            "not_seen": "the script's process could not be looked at from outside: "
            "OSError: it shows nothing",
        }
    }


needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a file")


@needs_memfd
def test_another_process_shows_since_when_it_waits() -> None:
    from vitprof.watch.pending_wait import PendingWait

    pending = PendingWait()
    watch = ScriptWatch(os.getpid(), pending.descriptor, UsualWaits(), lambda: 1.0)
    assert watch._read() == (0.0, PENDING_MARK)
    pending.words[0] = 12.5
    assert watch._read() == (12.5, PENDING_MARK)
    os.close(pending.descriptor)
    pending.words[0] = 13.5
    assert watch._read()[0] == 13.5, "the script may close what it does not know"


@needs_memfd
def test_a_descriptor_that_the_script_has_used_again_is_not_read() -> None:
    descriptor = os.memfd_create("other")
    try:
        os.truncate(descriptor, mmap.PAGESIZE)
        os.pwrite(descriptor, struct.pack("=2d", 5.0, 1.0), 0)
        with pytest.raises(ValueError, match="something else"):
            ScriptWatch(os.getpid(), descriptor, UsualWaits(), lambda: 1.0)
    finally:
        os.close(descriptor)
