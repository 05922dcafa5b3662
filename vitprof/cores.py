"""The cores that a job has: often fewer than the machine's, under Slurm, in a container, or behind taskset."""

import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path

NODE = "VITPROF_NODE"
"""Environment variable: the name of the node that a cluster gave to a job; two nodes may be on one host."""


def node_name() -> str:
    """Returns the name of the node that this process is on: the host's, where no cluster gave another."""
    return os.environ.get(NODE) or socket.gethostname()


JOB_IDS = ("VITPROF_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
"""Environment variables with the id of a cluster's job: one to set by hand, Slurm's, PBS's, LSF's, Grid Engine's."""


def job_id() -> str:
    """Returns the id that the cluster's scheduler gave to the job of this process; "" without one."""
    return next(filter(None, map(os.environ.get, JOB_IDS)), "")


def job_cores(root: Path = Path("/")) -> int:
    """Returns the logical cores that this process may use, by affinity and quota; at least 1."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, int(min([allowed, *_quotas(root)])))


def cores_in_words(mine: int, all_cores: int) -> str:
    """Returns how many cores the job has: "64 cores", or "4 of 64 cores are yours"."""
    return f"{all_cores} cores" if mine == all_cores else f"{mine} of {all_cores} cores are yours"


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[list[Path]]:
    """Yields this process's control group and those above it, of version 2 and of the controller's own in version 1. In
    a container the name may be the host's, while the mount is the container's own: those that are not there are left
    out.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, name = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controllers
            own = top / name.lstrip("/")
            yield [
                group
                for group in (own, *own.parents)
                if group.is_relative_to(top) and os.path.isdir(group)
            ]


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quotas of this process's control groups and those above them, in cores."""
    for group in (group for groups in control_groups("cpu", root) for group in groups):
        of_version_1 = f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        quota, _, period = (_read(group / "cpu.max") or of_version_1).partition(" ")
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
