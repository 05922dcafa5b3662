"""Work that takes minutes, done once by the server for all sessions, in a thread so that no page waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from vitprof.errors import one_line
from vitprof.jobs.users import carried, check_may_stop, may_stop, who
from vitprof.ui.shutdown import at_end

Progress = TypeVar("Progress")
Result = TypeVar("Result")
Work = Callable[[Callable[[Progress], None], Callable[[], bool]], Result]
"""A function that receives two others: one to call with its progress, and one that returns whether to stop."""


class BackgroundTask(Generic[Progress, Result]):
    """One piece of work at a time: its progress while it runs, then its result or error. Ends with the program."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.progress: Progress | None = None
        self.result: Result | None = None
        self.started_by = ""
        """Who started the last work, where users log in; "" otherwise."""
        self.error = ""
        """Why there is no result, in one line."""
        at_end(self.close)

    @property
    def running(self) -> bool:
        """Returns whether work is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Work[Progress, Result]) -> None:
        """Starts `work` and forgets the last result, unless something is running already."""
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
        except Exception as error:  # nobody would see an exception of the thread
            self.error = one_line(error)

    def _tell(self, progress: Progress) -> None:
        self.progress = progress

    @property
    def may_stop(self) -> bool:
        """Returns whether the user of this session may stop the work."""
        return may_stop(self.started_by)

    def stop(self) -> None:
        """Asks the work to end; what it then returns is the result. Raises `JobError` if the user may not stop it."""
        check_may_stop("it", self.started_by)
        self._stop.set()

    def wait(self) -> None:
        """Waits until nothing is running."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stops the work and waits until it has ended."""
        self._stop.set()
        self.wait()
