"""Other programs that keep the CPU busy for as long as a case needs them, and how late the system wakes
a process.

Run as a file, this is such a program. So it imports nothing of vitprof.
"""

import os
import subprocess
import sys
import threading
import time
from statistics import fmean
from typing import Self

FOR_EACH_CORE = 2
"""Busy processes for each core. With one, a job of one busy thread would lose only 1/(cores + 1) of its
time once the system has spread the load; with two, it gets about a third of a core on any machine."""


class BusyCores:
    """Processes of normal priority that keep all cores busy from `begin` to the end of the `with` block."""

    def __init__(self) -> None:
        self._hogs: list[subprocess.Popen[bytes]] = []
        self.begun = False

    def __enter__(self) -> Self:
        from vitprof.cores import job_cores  # here: a hog runs this file alone

        me = [sys.executable, "-I", __file__]
        pipe = subprocess.PIPE
        nothing = subprocess.DEVNULL
        try:
            for _ in range(FOR_EACH_CORE * job_cores()):
                # in a session of its own: Ctrl-C reaches this process only, which then ends them
                hog = subprocess.Popen(
                    me, bufsize=0, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True
                )
                self._hogs.append(hog)
            for hog in self._hogs:
                assert hog.stdout is not None
                hog.stdout.read(1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self) -> None:
        """Makes them busy."""
        self.begun = True
        for hog in self._hogs:
            assert hog.stdin is not None
            hog.stdin.write(b".")

    def __exit__(self, *_: object) -> None:
        for hog in self._hogs:
            hog.kill()
        for hog in self._hogs:
            with hog:  # closes its pipes, and waits
                continue


class Sleeper:
    """A thread that sleeps for `seconds` again and again, and records how long each sleep took."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = threading.Event()
        self._took: list[tuple[float, float]] = []
        self._thread = threading.Thread(
            target=self._sleep, name="vitprof-selftest-sleeper", daemon=True
        )

    def _sleep(self) -> None:
        clock = time.perf_counter  # the clock that jobs use
        while not self._ended.is_set():
            begun = clock()
            time.sleep(self._seconds)
            self._took.append((begun, clock()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def late_s(self, start_s: float, end_s: float) -> float:
        """Returns the mean seconds by which sleeps overran; 0 without any.

        Counts the sleeps that began from `start_s` to `end_s` (`time.perf_counter`).
        """
        # a copy: the thread may append meanwhile
        took = list(self._took)
        late = [end - begun - self._seconds for begun, end in took if start_s <= begun <= end_s]
        return fmean(late) if late else 0.0


def keep_busy() -> None:
    """Prints "." when ready, and from the first byte of standard input keeps a core busy until that input ends."""
    print(".", end="", flush=True)  # noqa: T201
    if sys.stdin.buffer.read(1):
        threading.Thread(target=_end_with_input, daemon=True).start()
        while True:
            pass


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    keep_busy()
