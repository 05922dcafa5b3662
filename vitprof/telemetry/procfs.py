"""Reads what Linux counts for each process, straight from /proc: telemetry does so several times a second.

psutil knows all of it, on any system, and takes two to five times as long: it opens two files for a process where one
has the figures, and that of every process of the machine to find the children of one. Between two samples a training
job fills the CPU's caches, which makes each step of a sample four times as slow as in a loop of nothing else.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
BLOCK_DEVICES = Path("/sys/block")
SECTOR_BYTES = 512
"""Unit of /proc/diskstats, whatever the device's own sectors are (kernel documentation, admin-guide/iostats)."""
STOPPED = (b"T", b"t")
"""States of a process that gets no core until it is continued: by SIGSTOP, Ctrl-Z or a debugger. A process that waits
for a drive, a network or a lock has other states."""
STATE, USER_TICKS, SYSTEM_TICKS, RSS_PAGES = 0, 11, 12, 21
"""Places in /proc/PID/stat after the name in parentheses (proc_pid_stat(5); 3, 14, 15 and 24 there)."""

N_STATES, IDLE, IO_WAIT = 8, 3, 4
"""Of a core in /proc/stat, and the places of two (proc_stat(5)). Guest time follows, which user time has already."""


class ProcessFigures(NamedTuple):
    """A process at one moment."""

    cpu_s: float
    """User and system time so far."""
    rss_bytes: int
    """Resident memory; 0 for a process that has ended and waits for its parent (a zombie)."""
    stopped: bool


def read(path: str, at_once: int = 4096) -> bytes:
    """Returns the content of a small file of the kernel. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(file, at_once)]
        while len(parts[-1]) == at_once:
            parts.append(os.read(file, at_once))
        return b"".join(parts)
    finally:
        os.close(file)


def process_figures(pid: int) -> ProcessFigures:
    """Returns the figures of a process. Raises `OSError` where it is gone, or this system has no /proc."""
    fields = read(f"{PROC}/{pid}/stat").rpartition(b")")[2].split()
    ticks = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
    rss = int(fields[RSS_PAGES]) * _page_bytes()
    return ProcessFigures(ticks / _ticks_per_s(), rss, fields[STATE] in STOPPED)


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
        except OSError:  # a thread that has just ended
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def threads(pid: int, proc: Path = PROC) -> list[str]:
    """Returns the ids of a process's threads; none where it is gone, or this system has no /proc."""
    try:
        return os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return []


def machine_ticks() -> tuple[int, int]:
    """Returns the clock ticks that all cores have had since the machine started, and those in which a core had nothing
    to do; waiting for a disk counts as nothing to do. Raises `OSError` or `ValueError` where this system does not count
    them.
    """
    file = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        name, *counted = os.read(file, 256).split(b"\n", 1)[0].split()  # the sum over all cores comes first
    finally:
        os.close(file)
    ticks = [int(n) for n in counted[:N_STATES]]
    if name != b"cpu" or len(ticks) < N_STATES:
        raise ValueError("/proc/stat does not begin with the sum over all cores")
    return sum(ticks), ticks[IDLE] + ticks[IO_WAIT]


def disk_bytes() -> tuple[int, int]:
    """Returns the bytes read from and written to the machine's disks since it started, without counting partitions
    twice. Raises `OSError` where this system does not count them.
    """
    n_read = n_written = 0
    for line in read("/proc/diskstats").splitlines():
        _, _, name, _, _, sectors_read, _, _, _, sectors_written, *_ = line.split()
        if (sectors_read != b"0" or sectors_written != b"0") and _is_whole(name.decode()):
            n_read += int(sectors_read)
            n_written += int(sectors_written)
    return SECTOR_BYTES * n_read, SECTOR_BYTES * n_written


@functools.lru_cache(maxsize=1024)
def _is_whole(name: str) -> bool:
    """Returns whether a block device is a disk, not a partition of one."""
    return (BLOCK_DEVICES / name.replace("/", "!")).exists()


@functools.cache
def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")


@functools.cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")
