"""The process itself: that it forks, and ends."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from typing import Any, NoReturn

from vitprof.watch.events import NAN
from vitprof.watch.patches import Recorder, Replacements


class AtExit:
    """A function that `atexit` calls, until it is removed."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        atexit.register(function)

    def remove(self) -> None:
        atexit.unregister(self._function)


def install(recorder: Recorder, finished: Callable[[], None]) -> Replacements:
    """Records the end of the process, then calls `finished`: as Python ends, or before `os._exit`."""
    replacements = Replacements()

    def finish(status: float = NAN) -> None:
        if recorder.marks is not None:
            recorder.marks.finish()
        recorder.finish(status)
        finished()

    def leaving(leave: Callable[[int], NoReturn]) -> Any:
        @functools.wraps(leave)
        def leave_recorded(status: int) -> NoReturn:
            finish(float(status))
            leave(status)

        return leave_recorded

    replacements.keep(AtExit(finish))
    replacements.replace(os, "_exit", leaving)
    return replacements
