"""How long each stage of making a batch took, noted where it happens; and waits put into a stage on purpose.

The clock is `time.perf_counter`. On Linux it is CLOCK_MONOTONIC, and on macOS and Windows too it counts from the
machine's start: what a worker process reads can be compared with what the training loop reads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from vitprof.config import RunConfig, injection
from vitprof.records import Stage


@dataclass(frozen=True)
class Wait:
    """A wait of known length that is put into one stage of each batch, to check what is reported about it."""

    stage: str
    seconds: float

    def into(self, stage: Stage) -> None:
        """Called inside each stage of a batch, once: waits where it is this one, without using the CPU."""
        if stage == self.stage:
            time.sleep(self.seconds)


def asked_wait(config: RunConfig, *, train: bool = True) -> Wait | None:
    """Returns the wait that `config` asks for in batches that are trained on; None if none."""
    return Wait(*injection(config.inject)) if train and config.inject is not None else None


def stopwatch_cost_s(n: int = 1000) -> float:
    """Returns seconds that noting one part of one sample takes here: two readings of the clock and a sum. Done in 0.2
    ms.
    """
    stopwatch = Stopwatch()
    begun = perf_counter()
    for _ in range(n):
        start = perf_counter()
        stopwatch.read_s += perf_counter() - start
    return (perf_counter() - begun) / n


class Stopwatch:
    """Seconds that the samples of one batch spent in each stage so far. For one thread at a time; can be pickled."""

    __slots__ = ("_wait", "decode_s", "due", "noted", "read_s", "rest", "transform_s")

    def __init__(self, wait: Wait | None = None) -> None:
        self.noted: tuple[Stage, ...] = ()
        """Stages that a Dataset notes here while it makes a sample."""
        self.rest: Literal["read", "decode", ""] = ""
        """The stage that the rest of its `__getitem__` belongs to; empty where the rest is none of them."""
        self._wait = wait
        self.restart()

    def restart(self) -> None:
        """For the next batch."""
        self.read_s = self.decode_s = self.transform_s = 0.0
        self.due = self._wait  # until it was waited

    def wait(self, stage: Stage) -> None:
        """To be called inside each stage of each sample: the first sample of a batch gets the wait."""
        if self.due is not None and self.due.stage == stage:
            self.due.into(stage)
            self.due = None

    def wait_for_rest(self) -> None:
        """To be called before the samples of a Dataset: the wait, where it belongs to a stage that is not noted."""
        if self.due is None:
            return
        if self.rest:
            self.wait(self.rest)
        if "read" not in self.noted:  # not the rest either, or it is done
            begun = perf_counter()
            self.wait("read")
            self.read_s += perf_counter() - begun

    def end_rest(self, begun_s: float) -> None:
        """To be called after them: what was not noted since `begun_s` goes to the stage that the rest belongs to."""
        if self.rest:
            left = max(0.0, perf_counter() - begun_s - self.read_s - self.decode_s - self.transform_s)
            if self.rest == "read":
                self.read_s += left
            else:
                self.decode_s += left

    def add(self, other: Stopwatch) -> None:
        """Adds what another thread spent on the same batch."""
        self.read_s += other.read_s
        self.decode_s += other.decode_s
        self.transform_s += other.transform_s
