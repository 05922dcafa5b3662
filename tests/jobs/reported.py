"""A job that only reports: steps one after another, on a clock of its own."""

import os
from collections.abc import Callable, Iterator

import numpy as np

from tests.jobs.sending import columns, waiting
from vitprof.measure.wire import Message, Note
from vitprof.recording.columns import STEP_COLUMNS

STEP_S = 0.1
DONE = Note("end", {"status": "done", "error": ""})


def steps(first: int, n: int) -> np.ndarray:
    """Rows of n steps of 0.1 s, half of it a data wait."""
    number, half = np.arange(first, first + n), np.full(n, STEP_S / 2)
    known = columns(n, step=number, epoch=0, samples=4, **waiting(number * STEP_S, half, half))
    return np.column_stack([*known.values()])


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ReportingJob:
    """A runner whose clock moves half a second for each message of five steps; `at` is called with each time."""

    pid = os.getpid()

    def __init__(self, clock: Clock, seconds: float, at: Callable[[float], None], end: Note = DONE) -> None:
        self._clock, self._seconds, self._at, self._end = clock, seconds, at, end

    @property
    def n_steps(self) -> int:
        return int(self._seconds / STEP_S)

    def messages(self) -> Iterator[Message | None]:
        for first in range(0, self.n_steps, 5):
            self._clock.now += 5 * STEP_S
            self._at(self._clock.now)
            yield dict(zip(STEP_COLUMNS, steps(first, 5).T, strict=True))
        yield self._end

    def ask_stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> str:
        return ""
