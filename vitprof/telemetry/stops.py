"""When a job could not run, whatever its loader does: told by the system, not by how long something took.

A loop that waits for a drive or a network uses no CPU either, but its process is not stopped, and whoever looks at it
from outside goes on meanwhile. So what is taken for a stop is: the state that the system gives of a process; a gap in
the looking itself, in which the job used no CPU; and the clock that goes on while the machine sleeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Set

from vitprof.records import Stop, StopKind

MIN_GAP_S = 1.0
"""By how much a look must come late to be a gap. On a busy machine a thread waits for a core for some 10 ms; garbage
collection and pages that are drawn in the same process hold it up for up to 0.3 s."""
MIN_ASLEEP_S = 0.5
"""How far the two clocks must move apart: they are read one after the other, some microseconds apart."""
IDLE_PCT = 10.0
"""CPU use over a gap, 100 = one core, up to which the job did not run in it. What it used before the gap began is
allowed for."""


def asleep_s() -> float:
    """Returns for how long this machine has slept since it started; NaN where the system does not tell.

    Linux: CLOCK_BOOTTIME counts it and CLOCK_MONOTONIC does not (clock_gettime(2)).
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return math.nan
    return max(0.0, time.clock_gettime(clock) - time.clock_gettime(time.CLOCK_MONOTONIC))


class StopSeeker:
    """Looks at a job's processes again and again, and keeps what stops of them are over."""

    def __init__(self, pid: int, period_s: float) -> None:
        """`pid` is the process that trains; looks are to come every `period_s`."""
        self._pid, self._period_s = pid, period_s
        self.found: list[Stop] = []
        self._ran: set[int] = set()
        """Processes that were seen not to be stopped: one that somebody stopped before is no worker of the job."""
        self._stopped: dict[int, tuple[float, float, float]] = {}
        """The look before a process was stopped, which it still is, and the first and the last one at which it was."""
        self._last_s = math.nan
        self._looked_s = math.nan
        self._asleep_s = math.nan
        self._cpu_pct = 0.0

    def look(self, now: float, pids: Set[int], stopped: Set[int], cpu_pct: float, asleep: float) -> None:
        """Takes what is seen: all processes, those that are stopped, CPU use of all since the last look, `asleep_s`."""
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
        """Takes when a look was over. The next one is to come a period after it began, at the latest after this."""
        self._looked_s = now

    def _look_for_gap(self, now: float, cpu_pct: float) -> None:
        gap_s = now - self._looked_s
        before_pct, self._cpu_pct = self._cpu_pct, 0.0 if math.isnan(cpu_pct) else cpu_pct
        if not gap_s > self._period_s + MIN_GAP_S:  # also where no look was before
            return
        allowed = IDLE_PCT + before_pct * self._period_s / gap_s
        if cpu_pct <= allowed:
            since = self._looked_s + self._period_s
            self.found.append(Stop("paused", since, now, now - since))

    def _look_for_sleep(self, now: float, asleep: float) -> None:
        slept_s, self._asleep_s = asleep - self._asleep_s, asleep
        if slept_s > MIN_ASLEEP_S:
            self.found.append(Stop("asleep", self._looked_s, now, slept_s))
