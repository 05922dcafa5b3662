"""How long a wait really takes on this machine while a job runs."""

from __future__ import annotations

import threading
import time
from statistics import fmean
from types import TracebackType


class Sleeper:
    """Waits for `seconds` again and again in a thread of its own, and notes how long that took.

    A process that has waited goes on when the system gives it a core: some 0.06 ms later on an idle machine, 1 ms and
    more on a busy one. That belongs to the wait that a job is given, so it is measured beside it. Uses next to no CPU.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = threading.Event()
        self._took: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._sleep, name="vitprof-selftest-sleeper", daemon=True)

    def _sleep(self) -> None:
        clock = time.perf_counter  # as the jobs' own
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
        """Mean seconds that a wait was longer than asked for, of those that began from `start_s` to `end_s`; else 0."""
        late = [end - begun - self._seconds for begun, end in list(self._took) if start_s <= begun <= end_s]
        return fmean(late) if late else 0.0
