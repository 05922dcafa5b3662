"""Other programs that keep the CPU busy for as long as a case needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("hog.py")
FOR_EACH_CORE = 2
"""Busy processes for each core. With one, a job of one busy thread would lose only 1/(cores + 1) of its time once the
system has spread the load: hardly anything on a machine of many cores. With two, the thread gets about a third of a
core on any machine."""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BusyCores:
    """Processes of normal priority that keep all cores busy from `begin` to the end of the `with` block.

    They are killed at the end of the block. If this process is killed, their standard input ends and they exit.
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
                        start_new_session=True,  # Ctrl-C reaches this process only, which then ends them
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
        """Returns their process ids."""
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
