"""CPU, memory and disk figures: of the machine, and of a job's process with its workers.

They come from /proc where there is one (`procfs`), else from psutil.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from vitprof.telemetry import procfs
from vitprof.telemetry.procfs import ProcessFigures

RESCAN_S = 1.0
"""Least time (s) between two scans of the process tree."""
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
"""psutil's names for `procfs.STOPPED`."""
RESCAN_SHARE = 0.01
"""Most of one core that scans may use, as a share. Where the kernel does not list children, psutil reads every process
of the machine: 12 us a process is 50 ms with 4,000 processes (measured here)."""


class Rate:
    """The change per second of a counter; NaN at first, where time fails to increase, and where the counter falls."""

    def __init__(self) -> None:
        self._now = self._value = math.nan

    def __call__(self, now: float, value: float) -> float:
        span_s, change = now - self._now, value - self._value
        self._now, self._value = now, value
        return change / span_s if span_s > 0 and change >= 0 else math.nan


class MachineCpu:
    """CPU use of the whole machine since the last call, by the formula of psutil.cpu_percent.

    That function keeps its last reading per thread, so the first call from a new thread would return a false 0.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def __call__(self) -> float:
        """Returns percent, 100 = all cores busy; NaN at first and where no clock tick has passed since the last one."""
        total, idle = _machine_times()
        last, self._last = self._last, (total, idle)
        if last is None or total <= last[0]:
            return math.nan
        return min(100.0, max(0.0, 100.0 * (1.0 - (idle - last[1]) / (total - last[0]))))


def _machine_times() -> tuple[float, float]:
    """Returns how long all cores were there, and idle, since the machine started, both in the same unit."""
    with contextlib.suppress(OSError, ValueError):
        return procfs.machine_ticks()
    times = psutil.cpu_times()
    # Linux counts guest time in user time, too; waiting for a disk counts as idle.
    total: float = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total, times.idle + getattr(times, "iowait", 0.0)


def disk_read_bytes() -> float:
    """Returns the bytes read from the machine's disks since it started; NaN where the system does not count them."""
    return _disk_bytes()[0]


def disk_written_bytes() -> float:
    """Returns the bytes written to the machine's disks since it started; NaN where the system does not count them."""
    return _disk_bytes()[1]


def _disk_bytes() -> tuple[float, float]:
    with contextlib.suppress(OSError, ValueError):
        return procfs.disk_bytes()
    try:
        counters = psutil.disk_io_counters(nowrap=False)
    except (OSError, RuntimeError, psutil.Error):  # NotImplementedError, a RuntimeError: no usable /proc/diskstats
        counters = None
    return (math.nan, math.nan) if counters is None else (float(counters.read_bytes), float(counters.write_bytes))


class ProcessTree:
    """CPU and memory of a process and its descendants.

    Processes are identified by pid and start time (psutil's own equality), so a reused pid is a new process. Workers
    that outlive their parent are still counted. Not counted: processes too short-lived for a scan to find, and what a
    process used between the last sample and its end.
    """

    def __init__(self, pid: int) -> None:
        self._cpu_s: dict[psutil.Process, float | None] = {}
        self._now = math.nan
        self._scanned_s = -math.inf
        self._rescan_s = RESCAN_S
        self.stopped: frozenset[int] = frozenset()
        """Ids of the processes in the last sample that a signal or a debugger had stopped."""
        self._root: psutil.Process | None
        try:
            self._root = psutil.Process(pid)
        except psutil.Error:
            self._root = None

    @property
    def pids(self) -> frozenset[int]:
        """Returns the ids of the processes in the last sample."""
        return frozenset(process.pid for process in self._cpu_s)

    def sample(self, now: float) -> tuple[float, float]:
        """Returns CPU percent since the last sample (100 = one core busy) and resident bytes; NaN if none is left.

        The CPU figure is also NaN at first, and where `now` (s) is not after that of the last sample.
        """
        span_s, self._now = now - self._now, now
        if not 0 <= now - self._scanned_s < self._rescan_s:
            self._scan(now)
        used_s, rss, stopped = 0.0, 0, []
        for process, before_s in list(self._cpu_s.items()):
            figures = _figures(process)
            if figures is None or not figures.rss_bytes:  # it has ended; a zombie is still listed, without memory
                del self._cpu_s[process]
                continue
            if figures.stopped:
                stopped.append(process.pid)
            if before_s is not None:
                used_s += max(0.0, figures.cpu_s - before_s)
            elif span_s > 0:
                # Newly found, and perhaps older than the span: counts with its average so far, or it would be a peak.
                age_s = time.time() - process.create_time()  # which psutil has read already
                used_s += figures.cpu_s * span_s / max(age_s, span_s)
            self._cpu_s[process] = figures.cpu_s
            rss += figures.rss_bytes
        self.stopped = frozenset(stopped)
        if not self._cpu_s:
            return math.nan, math.nan
        return (100.0 * used_s / span_s if span_s > 0 else math.nan), float(rss)

    def _scan(self, now: float) -> None:
        began_s = time.thread_time()
        family: list[psutil.Process] = []
        try:
            if self._root is not None:
                # vitprof is not part of the job, even where the job is the first process of a container and so the
                # parent of all orphans.
                children = [p for p in self._children(self._root) if p.pid != os.getpid()]
                family = [self._root, *children] if self._root.is_running() else []
        except psutil.Error:
            family = []  # the job's process has ended; some of its workers may still run
        orphans = [process for process in self._cpu_s if process.is_running()]
        self._cpu_s = {process: self._cpu_s.get(process) for process in (*family, *orphans)}
        self._scanned_s = now
        self._rescan_s = max(RESCAN_S, (time.thread_time() - began_s) / RESCAN_SHARE)

    def _children(self, root: psutil.Process) -> list[psutil.Process]:
        """Returns the processes below `root`. Raises `psutil.Error` where it is gone."""
        if not procfs.lists_children():
            return list(root.children(recursive=True))
        known = {process.pid: process for process in self._cpu_s if process.is_running()}
        processes = []
        for pid in procfs.descendants(root.pid):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                processes.append(known.get(pid) or psutil.Process(pid))
        return processes


def _figures(process: psutil.Process) -> ProcessFigures | None:
    """Returns the figures of a process; None where it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return procfs.process_figures(process.pid)
    try:
        with process.oneshot():
            times = process.cpu_times()
            resident = process.memory_info().rss
            return ProcessFigures(times.user + times.system, resident, process.status() in STOPPED)
    except psutil.Error:
        return None


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
        waited_ns: dict[tuple[int, str], int] = {}
        try:
            for tid in procfs.threads(pid, self._proc):
                waited_ns[pid, tid] = int(procfs.read(f"{self._proc}/{pid}/task/{tid}/schedstat").split()[1])
        except (OSError, ValueError, IndexError):  # it has just ended, or this system does not count
            pass
        return waited_ns
