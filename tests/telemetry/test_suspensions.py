"""When a job could not run: told apart from a loader that waits, in made worlds whose truth is known."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from vitprof.recording.columns import Stop
from vitprof.telemetry import ProcessTree
from vitprof.telemetry.suspensions import StopSeeker, asleep_s

MAIN, WORKER, STRANGER = 10, 11, 12
PERIOD_S = 0.2
Span = tuple[float, float]


def watched(
    *,
    main: Span = (0, 0),
    worker: Span = (0, 0),
    us: Span = (0, 0),
    waits: Span = (0, 0),
    asleep: tuple[float, float] = (math.inf, 0),
    until: float = 60.0,
) -> list[Stop]:
    """What is found where processes are stopped in these spans, the loader waits for a drive in another, and the
    machine sleeps (at, seconds). One core is in use while nobody is stopped and nobody waits.
    """
    seeker, now, looked = StopSeeker(MAIN, PERIOD_S), 0.0, 0.0
    while now < until:
        stopped = {pid for pid, span in ((MAIN, main), (WORKER, worker), (STRANGER, (0, math.inf))) if _in(now, span)}
        busy = now - looked - sum(_common((looked, now), span) for span in (main, worker, waits))
        cpu = 100.0 * max(busy, 0.0) / (now - looked) if now > looked else math.nan
        slept = asleep[1] if now > asleep[0] else 0.0
        seeker.look(now, {MAIN, WORKER, STRANGER}, stopped, cpu, 1000.0 + slept)
        seeker.looked(now + 0.001)
        looked, now = now, now + PERIOD_S
        if _in(now, us):
            now = us[1] + 0.002
    return seeker.found


def _in(t: float, span: Span) -> bool:
    return span[0] <= t < span[1]


def _common(a: Span, b: Span) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))


@pytest.mark.parametrize("seed", range(5))
def test_a_stop_is_found_where_it_was_and_a_waiting_loader_is_none(seed: int) -> None:
    start, length = np.random.default_rng(seed).uniform((2, 2), (20, 30)).tolist()
    span = (start, start + length)
    for kind, world in (
        ("stopped", {"main": span}),
        ("stopped", {"main": span, "worker": span}),
        ("worker", {"worker": span}),
        ("paused", {"main": span, "worker": span, "us": span}),
        ("paused", {"main": span, "us": span}),
    ):
        found = [stop for stop in watched(**world) if stop.kind == kind]
        (stop,) = found if kind != "paused" else [s for s in found if s.seconds > 1]
        assert stop.seconds == pytest.approx(length, abs=2 * PERIOD_S), world
        assert span[0] - 1e-9 <= stop.t_start_s <= span[0] + PERIOD_S + 0.01
        assert span[1] - PERIOD_S - 1e-9 <= stop.t_end_s <= span[1] + 0.01
    assert watched(waits=span) == [], "a drive that does not answer"
    assert watched(us=span) == [], "whoever looks was stopped, and the job went on"
    assert watched() == []


def test_a_process_that_was_stopped_all_along_is_no_worker() -> None:
    seeker = StopSeeker(MAIN, PERIOD_S)
    for now, stopped in ((0.0, {WORKER}), (0.2, {WORKER}), (0.4, set[int]())):
        seeker.look(now, {MAIN, WORKER}, stopped, 100.0, math.nan)
    assert seeker.found == []


def test_a_sleeping_machine_is_told_by_the_clock_that_goes_on() -> None:
    (stop,) = watched(asleep=(5.0, 3600.0))
    assert (stop.kind, stop.seconds) == ("asleep", 3600.0)
    assert stop.t_end_s - stop.t_start_s <= PERIOD_S
    assert math.isnan(asleep_s()) or 0 <= asleep_s() == pytest.approx(asleep_s(), abs=1)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_system_says_which_process_is_stopped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tree = ProcessTree(os.getpid())
    try:
        tree.sample(0.0)
        assert tree.stopped == frozenset()
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        tree.sample(1.0)
        assert tree.stopped == {child.pid}
        child.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WCONTINUED)
        tree.sample(2.0)
        assert tree.stopped == frozenset()
    finally:
        child.kill()
        child.communicate()
