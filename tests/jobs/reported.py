"""A job that only reports: steps one after another, on a clock of its own."""

import os
from collections.abc import Callable, Iterator

import numpy as np

from tests.clock import Clock
from tests.jobs.sending import columns, waiting
from vitprof.measure.wire import Message, Note

STEP_S = 0.1
DONE = Note("end", {"status": "done", "error": ""})


def step_columns(first: int, n: int) -> dict[str, np.ndarray]:
    """`n` steps of 0.1 s, half of it a data wait."""
    number, half = np.arange(first, first + n), np.full(n, STEP_S / 2)
    return columns(n, step=number, epoch=0, samples=4, **waiting(number * STEP_S, half, half))


def steps(first: int, n: int) -> np.ndarray:
    """The same as rows."""
    return np.column_stack([*step_columns(first, n).values()])


class ReportingJob:
    """A runner whose clock moves half a second for each message of five steps; `at` is called with each time."""

    pid = os.getpid()

    def __init__(
        self, clock: Clock, seconds: float, at: Callable[[float], None], end: Note = DONE
    ) -> None:
        self._clock, self._seconds, self._at, self._end = clock, seconds, at, end

    @property
    def n_steps(self) -> int:
        return int(self._seconds / STEP_S)

    def messages(self) -> Iterator[Message | None]:
        for first in range(0, self.n_steps, 5):
            self._clock.now += 5 * STEP_S
            self._at(self._clock.now)
            yield step_columns(first, 5)
        yield self._end

    def ask_stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> str:
        return ""
