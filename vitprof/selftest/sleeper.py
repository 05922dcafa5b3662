"""How long a wait really takes on this machine while a job runs."""

from __future__ import annotations

import threading
import time
from statistics import fmean
from types import TracebackType


class Sleeper:
    """A thread that sleeps for `seconds` again and again, and records how long each sleep took.

    A process that has slept continues when the system gives it a core: about 0.06 ms late on an idle machine, 1 ms and
    more on a busy one. That delay is part of the wait that a job is given, so it is measured while the job runs. The
    thread uses hardly any CPU.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = threading.Event()
        self._took: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._sleep, name="vitprof-selftest-sleeper", daemon=True)

    def _sleep(self) -> None:
        clock = time.perf_counter  # the clock that jobs use
        while not self._ended.is_set():
            begun = clock()
            time.sleep(self._seconds)
            self._took.append((begun, clock()))

    def __enter__(self) -> Sleeper:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def late_s(self, start_s: float, end_s: float) -> float:
        """Returns the mean seconds by which the sleeps that began from `start_s` to `end_s` overran; 0 without any."""
        late = [end - begun - self._seconds for begun, end in list(self._took) if start_s <= begun <= end_s]
        return fmean(late) if late else 0.0
