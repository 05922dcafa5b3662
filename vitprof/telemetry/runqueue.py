"""How long a job's threads were ready to run but had no core, by the kernel's own count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from vitprof.telemetry import procfs


class RunQueue:
    """The time that the threads of some processes spend waiting for a core.

    Linux counts it for each thread in nanoseconds: the second figure of /proc/PID/task/TID/schedstat (kernel
    documentation, sched-stats). Waiting for a disk or a lock, and sleeping, do not count.
    """

    def __init__(self, proc: Path = procfs.PROC) -> None:
        self._proc = proc
        self._waited_ns: dict[tuple[int, str], int] = {}
        self._now = math.nan

    def sample(self, now: float, pids: Iterable[int]) -> float:
        """Returns the time that threads waited for a core since the last sample, in percent: 100 = one thread all the
        time. NaN at first, and where the system does not count it. `now` is in seconds.
        """
        span_s, self._now = now - self._now, now
        before, self._waited_ns = self._waited_ns, {}
        for pid in pids:
            self._waited_ns |= self._threads(pid)
        if not self._waited_ns or not span_s > 0:
            return math.nan
        # not counted: what a new thread waited before it was first seen, and threads that have ended since
        waited = sum(max(0, ns - before.get(key, ns)) for key, ns in self._waited_ns.items())
        return 100.0 * waited / 1e9 / span_s

    def _threads(self, pid: int) -> dict[tuple[int, str], int]:
        found: dict[tuple[int, str], int] = {}
        try:
            for tid in procfs.threads(pid, self._proc):
                found[pid, tid] = int(procfs.read(f"{self._proc}/{pid}/task/{tid}/schedstat").split()[1])
        except (OSError, ValueError, IndexError):  # it has just ended, or this system does not count
            pass
        return found
