"""Other programs that take the CPU, for as long as a case needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("hog.py")
FOR_EACH_CORE = 2
"""With one on each core a job of one busy thread would lose 1/(cores + 1) of its time only, once the system has spread
the load: hardly anything on a machine of many cores. With two it gets about a third of a core anywhere."""


def cores() -> int:
    """Returns cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BusyCores:
    """Other processes that keep all cores busy, at their usual priority, from `begin` to the end of the block.

    They end with the block, and by themselves if this process is killed: their standard input ends then.
    """

    def __init__(self) -> None:
        self._hogs: list[subprocess.Popen[bytes]] = []
        self.begun = False

    def __enter__(self) -> BusyCores:
        try:
            for _ in range(FOR_EACH_CORE * cores()):
                self._hogs.append(
                    subprocess.Popen(
                        [sys.executable, "-I", str(PROGRAM)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        bufsize=0,
                        start_new_session=True,  # Ctrl-C is for this process, which ends them
                    )
                )
            for hog in self._hogs:
                assert hog.stdout is not None
                hog.stdout.read(1)
        except BaseException:
            self._end()
            raise
        return self

    @property
    def ids(self) -> list[int]:
        """Their process ids."""
        return [hog.pid for hog in self._hogs]

    def begin(self) -> None:
        """Makes them busy; does nothing the second time."""
        if self.begun:
            return
        self.begun = True
        for hog in self._hogs:
            assert hog.stdin is not None
            hog.stdin.write(b".")

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for hog in self._hogs:
            hog.kill()
        for hog in self._hogs:
            hog.wait()
            for pipe in (hog.stdin, hog.stdout):
                if pipe is not None:
                    pipe.close()
