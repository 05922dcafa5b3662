"""Work of the server itself: what takes minutes runs once for all sessions in a thread, and what runs is closed when
the server ends.
"""

from __future__ import annotations

import atexit
import math
import threading
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

import streamlit as st

from vitprof.errors import one_line
from vitprof.experiments.trials import OnProgress, Progress, Stop
from vitprof.formats import number
from vitprof.jobs.users import carried, check_may_stop, may_stop, who
from vitprof.ui.texts import escaped, rough_time

Result = TypeVar("Result")
Work = Callable[[OnProgress, Stop], Result]
"""A function that receives two others: one to call with its progress, and one that returns whether to stop."""


class BackgroundTask(Generic[Result]):
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

    def start(self, work: Work[Result]) -> None:
        """Starts `work` and forgets the last result, unless something is running already."""
        with self._lock:
            if self.running:
                return
            self._stop.clear()
            self.progress, self.result, self.error = None, None, ""
            self.started_by = who()
            self._thread = threading.Thread(target=carried(self._run), args=(work,), name=self._name, daemon=True)
            self._thread.start()

    def _run(self, work: Work[Result]) -> None:
        try:
            self.result = work(self._report, self._stop.is_set)
        except Exception as error:  # nobody would see an exception of the thread
            self.error = one_line(error)

    def _report(self, progress: Progress) -> None:
        self.progress = progress

    def draw_progress(self, key: str, *, help: str) -> None:
        """Draws the progress, and the button that stops the work."""
        now, text = self.progress, "starting"
        if now is not None:
            text = now.words
            if math.isfinite(now.best_per_s):
                text += f"; best so far {number(now.best_per_s, 'samples/s')}"
            if math.isfinite(now.seconds_left):
                text += f", about {rough_time(now.seconds_left)} left"
        with st.container(horizontal=True, vertical_alignment="center"):
            st.progress(min(now.fraction if now else 0.0, 1.0), text=escaped(text), width="stretch")
            st.button(
                "Stop",
                key=f"{key}-stop",
                icon=":material/stop:",
                on_click=self.stop,
                disabled=not may_stop(self.started_by),
                help=help,
            )

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


_closers: list[Callable[[], object]] = []


def at_end(close: Callable[[], object]) -> None:
    """Registers `close` to be called when the server ends, before those that were registered earlier."""
    _closers.append(close)


def end() -> None:
    """Calls each registered function once, the last one first. Errors are printed, and the rest are still called.

    The server calls this when it shuts down, because a process that then ends by a signal does not run atexit's
    functions.
    """
    while _closers:
        try:
            _closers.pop()()
        except Exception:
            traceback.print_exc()


atexit.register(end)
