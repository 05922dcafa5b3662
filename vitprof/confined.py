"""A process of vitprof's own for a library that reads somebody else's file, within bounds.

On a damaged file a library may end its process by a signal, work without end, or ask for all memory.
In such a process that is a line.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from vitprof.cores import job_cores

BYTES_A_CORE = 16 << 20
"""Memory for the stack of a thread, and for what a library keeps for it."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ENDED_BY_CPU_TIME = -signal.SIGPROF
"""Exit status of a process that took more CPU time than `count_cpu_from_here` allows."""


def start(module: str, stdin: int | IO[Any], stdout: int | IO[Any]) -> subprocess.Popen[bytes]:
    """Starts `python -m module`. Raises `OSError`."""
    return subprocess.Popen(
        # -P: no file of the current folder is taken for a module.
        [sys.executable, "-P", "-m", module],
        stdin=stdin,
        stdout=stdout,
        # Libraries warn of what the answer says.
        stderr=subprocess.DEVNULL,
        env=_environment(),
        # Ctrl-C is for this process, which ends the other one.
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    package_root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(p for p in (package_root, os.environ.get("PYTHONPATH")) if p)
    return {
        **os.environ,
        **dict.fromkeys(ONE_THREAD, "1"),
        "PYTHONPATH": path,
        # Arrow's own allocators take a GB of addresses at once, which the bound would count.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }


def why_ended(status: int) -> str:
    """Returns why a process gave no answer."""
    if status == -signal.SIGKILL:
        return "reading it was killed by the system: it may need more memory than there is"
    if status < 0:
        name = signal.Signals(-status).name
        return f"reading it ended a process by {name}: it is damaged, or cut short"
    return f"reading it ended a process with status {status}: it may be damaged"


# in that process


def own_output() -> IO[bytes]:
    """Returns standard output for the answers alone: what a library prints must not come between."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def count_cpu_from_here(most_s: float) -> None:
    """Ends this process after so much more CPU time, also inside a library."""
    signal.setitimer(signal.ITIMER_PROF, most_s)


def bound_memory(most: int) -> None:
    """Bounds what this process may allocate, in addition to what its threads take; mapped files are
    not counted.
    """
    import resource

    most += BYTES_A_CORE * job_cores()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
