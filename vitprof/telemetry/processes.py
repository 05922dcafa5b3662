"""CPU, memory and disk figures: of the machine, and of a job's process with its workers.

They come from /proc where there is one, else from psutil. psutil works on any system and takes two
to five times as long: it opens two files for a process where one has the figures, and those of
every process of the machine to find the children of one. Between two samples a training job fills
the CPU's caches, which makes each step of a sample four times as slow as in a loop of nothing else.
"""

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import psutil

PROC = Path("/proc")
STOPPED = (b"T", b"t")
"""States of a process that gets no core until it is continued: by SIGSTOP, Ctrl-Z or a debugger.

A process that waits for a drive, a network or a lock has other states."""
# Places in /proc/PID/stat after the name in parentheses. proc_pid_stat(5) counts from 1, with the
# process's id and name: 3, 4, 14 to 15, 16 to 17, 20 and 24 there.
STATE = 0
PARENT = 1
OWN_TICKS = slice(11, 13)
REAPED_TICKS = slice(13, 15)
THREADS = 17
RSS_PAGES = 21


class ProcessFigures(NamedTuple):
    """A process at one moment."""

    cpu_s: float
    """User and system time so far."""
    reaped_s: float
    """The same of its children that have ended and that it waited for, and of theirs."""
    rss_bytes: int
    """Resident memory; 0 for a process that has ended and waits for its parent (a zombie)."""
    stopped: bool
    parent: int
    """The id of its parent."""
    threads: int


def read(path: str) -> bytes:
    """Returns the content of a file of the kernel. Raises `OSError`."""
    with FileIO(path) as file:
        return file.readall()


def process_figures(pid: int) -> ProcessFigures:
    """Returns the figures of a process.

    Raises `OSError` where it is gone, or this system has no /proc.
    """
    fields = read(f"{PROC}/{pid}/stat").rpartition(b")")[2].split()
    ticks_per_s, page_bytes = _units()
    own_s = sum(map(int, fields[OWN_TICKS])) / ticks_per_s
    reaped_s = sum(map(int, fields[REAPED_TICKS])) / ticks_per_s
    rss_bytes = int(fields[RSS_PAGES]) * page_bytes
    parent = int(fields[PARENT])
    threads = int(fields[THREADS])
    return ProcessFigures(own_s, reaped_s, rss_bytes, fields[STATE] in STOPPED, parent, threads)


@functools.cache
def lists_children() -> bool:
    """Returns whether this kernel lists a process's children (CONFIG_PROC_CHILDREN)."""
    pid = os.getpid()
    return (PROC / str(pid) / "task" / str(pid) / "children").exists()


def descendants(pid: int) -> Iterator[int]:
    """Yields the ids of the children of a process, and of theirs; none where it is gone."""
    for tid in threads(pid):
        try:
            children = read(f"{PROC}/{pid}/task/{tid}/children").split()
        except OSError:
            # The thread has just ended.
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def threads(pid: int) -> list[str]:
    """Returns the ids of a process's threads; none where it is gone, or this system has no
    /proc.
    """
    try:
        return os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return []


@functools.cache
def _units() -> tuple[int, int]:
    return os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


RESCAN_SHARE = 0.01
"""Most of one core that scans may use, as a share.

Each sample scans if it can: workers that are not known yet are taken for other programs. Where the
kernel does not list children, psutil reads every process of the machine: 12 us a process is 50 ms
with 4,000 processes (measured here)."""


class Rate:
    """The change per second of a counter; NaN at first, where time fails to increase, and where the
    counter falls.
    """

    def __init__(self) -> None:
        self._now = self._value = math.nan

    def __call__(self, now: float, value: float) -> float:
        span_s = now - self._now
        change = value - self._value
        self._now = now
        self._value = value
        # A counter of 32 bits falls when it is full.
        if span_s > 0 and change >= 0:
            return change / span_s
        return math.nan


class MachineCpu:
    """CPU use of the whole machine since the last call, by the formula of psutil.cpu_percent.

    That function is not called itself, as it keeps its last reading for each thread: the first call
    from a new one would return a false 0.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def __call__(self) -> float:
        """Returns percent, 100 = all cores busy; NaN at first and where no clock tick has passed
        since the last one.
        """
        times = psutil.cpu_times()
        # Linux counts guest time in user time, too; waiting for a disk counts as idle.
        total: float = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle: float = times.idle + getattr(times, "iowait", 0.0)
        last = self._last
        self._last = (total, idle)
        if last is None:
            return math.nan
        total_before, idle_before = last
        if total <= total_before:
            return math.nan
        idle_share = (idle - idle_before) / (total - total_before)
        return min(100.0, max(0.0, 100.0 * (1.0 - idle_share)))


def disk_io_bytes() -> tuple[float, float]:
    """Returns the bytes read from and written to the machine's disks so far; NaN where they are not
    counted.
    """
    try:
        counters = psutil.disk_io_counters(nowrap=False)
    except (OSError, RuntimeError, psutil.Error):
        # A RuntimeError is psutil's NotImplementedError: there is no usable /proc/diskstats.
        counters = None
    if counters is None:
        return math.nan, math.nan
    return float(counters.read_bytes), float(counters.write_bytes)


class ProcessTree:
    """CPU and memory of a process and its descendants.

    Processes are identified by pid and start time (psutil's own equality), so a reused pid is a new
    process. Workers that outlive their parent are still counted. So are programs that begin and end
    between two samples: the parent that waits for one gets its time.
    """

    def __init__(self, pid: int) -> None:
        self._last: dict[psutil.Process, ProcessFigures | None] = {}
        self._unreaped_s = 0.0
        """Time (s, 0 or less) of processes that have ended and that their parents' figures did not
        have yet."""
        self._now = math.nan
        self._scanned_s = -math.inf
        self._rescan_s = 0.0
        self.stopped: frozenset[int] = frozenset()
        """Ids of the processes in the last sample that a signal or a debugger had stopped."""
        self.parents: dict[int, int] = {}
        """The parent of each process in the last sample, by their ids."""
        self._root: psutil.Process | None
        try:
            self._root = psutil.Process(pid)
        except psutil.Error:
            self._root = None

    @property
    def pids(self) -> frozenset[int]:
        """Returns the ids of the processes in the last sample, without zombies."""
        return frozenset(
            process.pid for process, figures in self._last.items() if figures and figures.rss_bytes
        )

    @property
    def figures(self) -> dict[int, ProcessFigures]:
        """Returns the figures of the processes in the last sample by their ids, without zombies."""
        return {
            process.pid: figures
            for process, figures in self._last.items()
            if figures and figures.rss_bytes
        }

    def sample(self, now: float) -> tuple[float, float]:
        """Returns CPU percent since the last sample (100 = one core busy) and resident bytes.

        Both are NaN if no process is left. The CPU figure is also NaN at first, and where `now` (s)
        is not after that of the last sample.
        """
        span_s = now - self._now
        self._now = now
        if not 0 <= now - self._scanned_s < self._rescan_s:
            self._scan(now)
        used_s = 0.0
        reaped_s = 0.0
        rss = 0
        stopped = []
        parents = {}
        for process, before in list(self._last.items()):
            figures = _figures(process) if process.is_running() else None
            if figures is None:
                # Its parent has its time now. What was seen of it before was counted then.
                del self._last[process]
                if before:
                    reaped_s -= before.cpu_s + before.reaped_s
                continue
            parents[process.pid] = figures.parent
            if figures.stopped:
                stopped.append(process.pid)
            if before is not None:
                used_s += max(0.0, figures.cpu_s - before.cpu_s)
                reaped_s += figures.reaped_s - before.reaped_s
            elif not figures.rss_bytes:
                # A zombie: it has ended, and counts when its parent waits for it.
                continue
            elif span_s > 0:
                # Newly found, and perhaps older than the span: it counts with its average so far,
                # or it would be a peak. psutil has read the time of its start already.
                age_s = time.time() - process.create_time()
                used_s += figures.cpu_s * span_s / max(age_s, span_s)
            self._last[process] = figures
            rss += figures.rss_bytes
        used_s += max(0.0, reaped_s + self._unreaped_s)
        # What ended after its parent was read: the parent's next figures have it.
        self._unreaped_s = min(0.0, reaped_s)
        self.stopped = frozenset(stopped)
        self.parents = parents
        if not rss:
            # None is left, or only zombies, which have no memory.
            return math.nan, math.nan
        cpu_pct = math.nan
        if span_s > 0:
            cpu_pct = 100.0 * used_s / span_s
        return cpu_pct, float(rss)

    def _scan(self, now: float) -> None:
        began_s = time.thread_time()
        family: list[psutil.Process] = []
        try:
            if self._root is not None:
                # A job that is the first process of a container is the parent of all orphans.
                # vitprof may be one of them, and is no part of the job.
                children = [p for p in self._children(self._root) if p.pid != os.getpid()]
                if self._root.is_running():
                    family = [self._root, *children]
        except psutil.Error:
            # The job's process has ended; some of its workers may still run.
            family = []
        self._last = {process: self._last.get(process) for process in (*family, *self._last)}
        self._scanned_s = now
        self._rescan_s = (time.thread_time() - began_s) / RESCAN_SHARE

    def _children(self, root: psutil.Process) -> list[psutil.Process]:
        """Returns the processes below `root`. Raises `psutil.Error` where it is gone."""
        if not lists_children():
            return list(root.children(recursive=True))
        known = {process.pid: process for process in self._last if process.is_running()}
        processes = []
        for pid in descendants(root.pid):
            # It may just have ended.
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(known.get(pid) or psutil.Process(pid))
        return processes


def _figures(process: psutil.Process) -> ProcessFigures | None:
    """Returns the figures of a process; None where it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return process_figures(process.pid)
    try:
        with process.oneshot():
            times = process.cpu_times()
            resident = process.memory_info().rss
            stopped = process.status() in ("stopped", "tracing-stop")
            reaped_s = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            used_s = times.user + times.system
            parent = process.ppid()
            threads = process.num_threads()
            return ProcessFigures(used_s, reaped_s, resident, stopped, parent, threads)
    except psutil.Error:
        return None


class CpuPressure:
    """The time in which some thread of the machine waited for a core, whoever's it was: Linux's
    pressure stall information (kernel 4.20 and later; Weiner, "Getting Started with PSI", 2018). It
    is of the whole machine also in a container, and so shows what another container does."""

    def __init__(self) -> None:
        self._waited_us = math.nan
        self._now = math.nan

    def sample(self, now: float) -> float:
        """Returns the share of the time since the last sample, 0 to 100; NaN at first, and where it
        is not counted."""
        before_us = self._waited_us
        span_s = now - self._now
        self._waited_us = _waited_us()
        self._now = now
        pct = 1e-4 * (self._waited_us - before_us) / span_s if span_s > 0 else math.nan
        return pct if math.isnan(pct) else min(100.0, pct)


def _waited_us() -> float:
    """Returns the microseconds since the machine's start; NaN where the kernel does not count
    them.
    """
    try:
        some = read(f"{PROC}/pressure/cpu").splitlines()[0]
        return float(some.rpartition(b"total=")[2])
    except (OSError, ValueError, IndexError):
        return math.nan


class RunQueue:
    """The time that the threads of some processes spend waiting for a core.

    Linux counts it for each thread in nanoseconds: the second figure of
    /proc/PID/task/TID/schedstat (kernel documentation, sched-stats). Waiting for a disk or a lock,
    and sleeping, do not count.
    """

    def __init__(self) -> None:
        self._waited_ns: dict[tuple[int, str], int] = {}
        self._now = math.nan

    def sample(self, now: float, pids: Iterable[int], main: int = 0) -> tuple[float, float]:
        """Returns the time that threads waited for a core since the last sample, in percent: 100 =
        one thread.

        The second figure is the part of it that was not waited in the process `main`. Both are NaN
        at first, and where the system does not count it. `now` is in seconds.
        """
        span_s = now - self._now
        self._now = now
        before = self._waited_ns
        self._waited_ns = {}
        for pid in pids:
            self._waited_ns |= self._threads(pid)
        if not self._waited_ns or not span_s > 0:
            return math.nan, math.nan
        # Not counted: what a new thread waited before it was first seen, and threads that have
        # ended since.
        waited = {key: max(0, ns - before.get(key, ns)) for key, ns in self._waited_ns.items()}
        others = (ns for (pid, _), ns in waited.items() if pid != main)
        # 1e-9 to seconds, 100 to percent
        return 1e-7 * sum(waited.values()) / span_s, 1e-7 * sum(others) / span_s

    def _threads(self, pid: int) -> dict[tuple[int, str], int]:
        waited_ns: dict[tuple[int, str], int] = {}
        try:
            for tid in threads(pid):
                waited_ns[pid, tid] = int(read(f"{PROC}/{pid}/task/{tid}/schedstat").split()[1])
        except (OSError, ValueError, IndexError):
            # It has just ended, or this system does not count.
            pass
        return waited_ns
