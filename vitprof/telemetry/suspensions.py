"""Finds the times in which a job could not run, whatever its loader does: from the system, not from the steps' times.

A loop that waits for a drive or a network uses no CPU either, but its process is not stopped, and a sampler outside it
goes on meanwhile. So a stop is found by one of three signs: the state that the system reports for a process; a gap
between samples in which the job used no CPU; and the clock that goes on while the machine sleeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Set

from vitprof.recording.columns import Stop, StopKind

MIN_GAP_S = 1.0
"""How late (s) a look must come to count as a gap. On a busy machine a thread waits about 10 ms for a core; garbage
collection, and pages drawn in the same process, delay it by up to 0.3 s."""
MIN_ASLEEP_S = 0.5
"""How far (s) the two clocks must move apart: they are read one after the other, microseconds apart."""
IDLE_PCT = 10.0
"""CPU use over a gap, 100 = one core, up to which the job counts as not running. What it used before the gap began is
added."""


def asleep_s() -> float:
    """Returns how long (s) this machine has slept since it started; NaN where the system does not report it.

    On Linux, CLOCK_BOOTTIME counts that time and CLOCK_MONOTONIC does not (clock_gettime(2)).
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return math.nan
    return max(0.0, time.clock_gettime(clock) - time.clock_gettime(time.CLOCK_MONOTONIC))


class StopSeeker:
    """A detector that looks at a job's processes with every sample, and keeps the stops that are over."""

    def __init__(self, pid: int, period_s: float) -> None:
        """`pid` is the process that trains; `period_s` is the time between looks."""
        self._pid, self._period_s = pid, period_s
        self.found: list[Stop] = []
        self._ran: set[int] = set()
        """Processes that were seen running: one that was stopped from the start is not a worker of the job."""
        self._stopped: dict[int, tuple[float, float, float]] = {}
        """For each stopped process, the times of the last look before it was stopped, and of the first and the last
        look at which it was."""
        self._last_s = math.nan
        self._looked_s = math.nan
        self._asleep_s = math.nan
        self._cpu_pct = 0.0

    def look(self, now: float, pids: Set[int], stopped: Set[int], cpu_pct: float, asleep: float) -> None:
        """Takes a look at time `now`: the ids of all processes and of the stopped ones, the CPU use of all since the
        last look (100 = one core), and `asleep_s()`.
        """
        self._look_for_gap(now, cpu_pct)
        self._look_for_sleep(now, asleep)
        for pid in stopped & (self._ran | {self._pid}):
            before, since, _ = self._stopped.get(pid, (self._last_s, now, now))
            self._stopped[pid] = before, since, now
        for pid in [p for p in self._stopped if p not in stopped]:
            before, since, until = self._stopped.pop(pid)
            longest = now - (since if math.isnan(before) else before)
            kind: StopKind = "stopped" if pid == self._pid else "worker"
            self.found.append(Stop(kind, since, until, (until - since + longest) / 2))
        self._ran = (self._ran & pids) | (pids - stopped)
        self._last_s = now

    def looked(self, now: float) -> None:
        """Takes the time at which a look ended. The next one is due a period after this, at the latest."""
        self._looked_s = now

    def _look_for_gap(self, now: float, cpu_pct: float) -> None:
        gap_s = now - self._looked_s
        before_pct, self._cpu_pct = self._cpu_pct, 0.0 if math.isnan(cpu_pct) else cpu_pct
        if not gap_s > self._period_s + MIN_GAP_S:  # also at the first look, where it is NaN
            return
        allowed = IDLE_PCT + before_pct * self._period_s / gap_s
        if cpu_pct <= allowed:
            since = self._looked_s + self._period_s
            self.found.append(Stop("paused", since, now, now - since))

    def _look_for_sleep(self, now: float, asleep: float) -> None:
        slept_s, self._asleep_s = asleep - self._asleep_s, asleep
        if slept_s > MIN_ASLEEP_S:
            self.found.append(Stop("asleep", self._looked_s, now, slept_s))
