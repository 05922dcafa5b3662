"""Other programs that take the CPU, for as long as a case needs them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).with_name("hog.py")
FOR_EACH_CORE = 2
"""With one on each core a job of one busy thread would lose 1/(cores + 1) of its time only, once the system has spread
the load: hardly anything on a machine of many cores. With two it gets about a third of a core anywhere."""


def cores() -> int:
    """Returns cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def busy_cores() -> Iterator[list[int]]:
    """Keeps all cores busy with other processes, at their usual priority; gives their process ids.

    They end with the block, and by themselves if this process is killed: their standard input ends then.
    """
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(FOR_EACH_CORE * cores()):
            hogs.append(
                subprocess.Popen(
                    [sys.executable, "-I", str(PROGRAM)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for this process, which ends them
                )
            )
        for hog in hogs:
            assert hog.stdout is not None
            hog.stdout.read(1)
        yield [hog.pid for hog in hogs]
    finally:
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait()
            for pipe in (hog.stdin, hog.stdout):
                if pipe is not None:
                    pipe.close()
