"""The cores that a job has: often fewer than the machine's, under Slurm, in a container, or behind taskset."""

import math
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path

NODE = "VITPROF_NODE"
"""Environment variable: the name of the node that a cluster gave to a job; two nodes may be on one host."""


def node_name() -> str:
    """Returns the name of the node that this process is on: the host's, where no cluster gave another."""
    return os.environ.get(NODE) or socket.gethostname()


JOB_IDS = ("VITPROF_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
"""Environment variables with the id of a cluster's job: one to set by hand, Slurm's, PBS's, LSF's, Grid
Engine's."""


def job_id() -> str:
    """Returns the id that the cluster's scheduler gave to the job of this process; "" without one."""
    for name in JOB_IDS:
        given = os.environ.get(name)
        if given:
            return given
    return ""


def job_cores(root: Path = Path("/")) -> int:
    """Returns the number of logical cores that this process may use, at least 1.

    They are those that it may run on (affinity), or as many as its control group's quota of CPU time is
    worth, if that is less. `root`: where `proc` and `sys` are.
    """
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    return max(1, int(min([allowed, *_quotas(root)])))


def cores_in_words(usable: int, all_cores: int) -> str:
    """Returns how many cores the job has: "64 cores", or "4 of 64 cores are yours"."""
    if usable == all_cores:
        return f"{all_cores} cores"
    return f"{usable} of {all_cores} cores are yours"


def processor_name(root: Path = Path("/")) -> str:
    """Returns the processor's name, such as "AMD EPYC 7B13". `root`: where `proc` is."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    # Not Linux, or a processor, such as ARM's, that Linux does not name. `platform.processor()` would
    # start a process.
    return platform.machine()


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[list[Path]]:
    """Yields the folders of this process's control group and those above it: of version 2, and of the
    controller's own group in version 1.

    Leaves out folders that are not there: in a container the name may be the host's, while the mount is
    the container's own.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, name = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controllers
            own = top / name.lstrip("/")
            groups = [group for group in (own, *own.parents) if group.is_relative_to(top)]
            yield [group for group in groups if os.path.isdir(group)]


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quotas of this process's control groups and those above them, in cores."""
    for groups in control_groups("cpu", root):
        for group in groups:
            yield _quota(group)


def _quota(group: Path) -> float:
    """Returns the quota of a control group in cores; infinity where it has none."""
    quota, _, period = _read(group / "cpu.max").partition(" ")
    if not quota:
        # version 1, in which -1 is no quota
        quota = _read(group / "cpu.cfs_quota_us")
        period = _read(group / "cpu.cfs_period_us")
    try:
        cores = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return math.inf
    return cores if cores > 0 else math.inf


def _read(path: Path) -> str:
    """Returns a file's text without white space around it; "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
