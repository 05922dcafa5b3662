"""Work of minutes that a server does once for all its sessions: in a thread, so that no page waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from vitprof.errors import one_line
from vitprof.jobs.asking import carried, check_may_stop, may_stop, who
from vitprof.ui.ending import at_end

Progress = TypeVar("Progress")
Result = TypeVar("Result")
Work = Callable[[Callable[[Progress], None], Callable[[], bool]], Result]
"""It is given what to call with its progress, and what tells it to stop."""


class BackgroundTask(Generic[Progress, Result]):
    """One piece of work at a time: what is running, and what came of the last one. Ends with the program."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.progress: Progress | None = None
        self.result: Result | None = None
        self.started_by = ""
        """Who began the last one, of those who log in; "" where nobody does."""
        self.error = ""
        """Why there is no result, in one line."""
        at_end(self.close)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Work[Progress, Result]) -> None:
        """Begins `work` and forgets the last result, unless something is running already."""
        with self._lock:
            if self.running:
                return
            self._stop.clear()
            self.progress, self.result, self.error = None, None, ""
            self.started_by = who()
            self._thread = threading.Thread(target=carried(self._run), args=(work,), name=self._name, daemon=True)
            self._thread.start()

    def _run(self, work: Work[Progress, Result]) -> None:
        try:
            self.result = work(self._tell, self._stop.is_set)
        except Exception as error:  # a thread's exception would be seen by nobody
            self.error = one_line(error)

    def _tell(self, progress: Progress) -> None:
        self.progress = progress

    @property
    def may_stop(self) -> bool:
        return may_stop(self.started_by)

    def stop(self) -> None:
        """Asks the work to end; what it returns then is the result. Raises `JobError` for who may not stop it."""
        check_may_stop("it", self.started_by)
        self._stop.set()

    def wait(self) -> None:
        """Waits until nothing is running."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stops the work and waits for its jobs to be gone."""
        self._stop.set()
        self.wait()
