"""The cores that a job has: often fewer than the machine's, under Slurm, in a container, or behind taskset."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def job_cores(root: Path = Path("/")) -> int:
    """Returns the logical cores that this process may use, by affinity and quota; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *_quotas(root)])))


def machine_cores() -> int:
    return os.cpu_count() or 1


def cores_in_words(mine: int, all_cores: int) -> str:
    """Returns how many cores the job has: "64 cores", or "4 of 64 cores are yours"."""
    return f"{all_cores} cores" if mine == all_cores else f"{mine} of {all_cores} cores are yours"


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quotas of this process's control groups and those above them, in cores: versions 1 and 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers not in ("", "cpu", "cpu,cpuacct"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = top / name.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            if controllers:
                quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            else:
                quota, _, period = _read(folder / "cpu.max").partition(" ")
            try:
                cores = float(quota) / float(period)
            except (ValueError, ZeroDivisionError):  # "max", or no such file
                continue
            yield cores if cores > 0 else math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
