"""Memory of a process that nobody shares, what is left of the machine's, and what shared memory takes."""

import math
import os
from pathlib import Path
from typing import NamedTuple

import psutil

from vitprof.cores import control_groups
from vitprof.telemetry.processes import PROC, read

SHARED_MEMORY = Path("/dev/shm")
"""Where the segments of shared memory are by which batches cross from workers."""


class Memory(NamedTuple):
    """The memory of a process (bytes)."""

    private_bytes: float
    """Pages that it alone has, clean and dirty: its end would free them."""
    pss_bytes: float
    """The same with its part of the pages that several processes have (proportional set size)."""
    rss_bytes: float
    """All pages that it has, also those that it shares."""


class SharedMemory(NamedTuple):
    """The use of /dev/shm by all programs (bytes); NaN where there is none, or it has no limit."""

    used_bytes: float
    free_bytes: float


def memory_of(pid: int, proc: Path = PROC) -> Memory | None:
    """Returns the memory of a process; None where it is gone, or this system does not say it."""
    try:
        lines = read(f"{proc}/{pid}/smaps_rollup").splitlines()
        kib = {}
        for line in lines[1:]:
            name, value, *_ = line.split()
            kib[name] = int(value)
        private_kib = kib[b"Private_Clean:"] + kib[b"Private_Dirty:"]
        return Memory(1024.0 * private_kib, 1024.0 * kib[b"Pss:"], 1024.0 * kib[b"Rss:"])
    except (OSError, ValueError, KeyError):
        return None


def available_bytes(root: Path = Path("/")) -> float:
    """Returns what programs can still use without swapping: of the machine's memory, or of what this
    process's control group, or one above it, may use, if that is less. `root`: where `proc` and `sys` are.
    """
    left = [float(psutil.virtual_memory().available)]
    for groups in control_groups("memory", root):
        left += [_left_of(group) for group in groups]
    return min(left)


def _left_of(group: Path) -> float:
    """Returns what a control group may still use; infinity where it has no limit.

    Its files in the page cache count as its memory, and make room for programs.
    """
    versions = (
        ("memory.max", "memory.current", "file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    )
    for limit_name, used_name, cached_name in versions:
        try:
            limit = int((group / limit_name).read_text())
            used = int((group / used_name).read_text())
            statistics = (group / "memory.stat").read_text().split()
            cached = int(statistics[statistics.index(cached_name) + 1])
        except (OSError, ValueError, IndexError):  # "max", or a file of the other version
            continue
        return max(0.0, float(limit - used + cached))
    return math.inf


def shared_memory(path: Path = SHARED_MEMORY) -> SharedMemory:
    """Returns the use of /dev/shm now."""
    try:
        facts = os.statvfs(path)
    except (OSError, AttributeError):  # Windows has no statvfs
        return SharedMemory(math.nan, math.nan)
    if not facts.f_blocks:
        return SharedMemory(math.nan, math.nan)
    used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return SharedMemory(float(used), float(facts.f_bavail * facts.f_frsize))
