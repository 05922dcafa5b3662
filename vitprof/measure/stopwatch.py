"""Times each stage of making a batch where it happens, and adds deliberate waits to a stage.

The clock is `time.perf_counter`. On Linux it is CLOCK_MONOTONIC, and on macOS and Windows, too, it
counts from the machine's start: a worker process's readings can be compared with the training
loop's.
"""

import math
import time
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Literal

from vitprof.config import RunConfig, injection
from vitprof.measure.stage_look import StageLook
from vitprof.recording.columns import Stage


@dataclass(frozen=True)
class Wait:
    """A wait of known length that is added to one stage of each batch, to check what is reported
    about it.
    """

    stage: str
    seconds: float

    def into(self, stage: Stage) -> None:
        """Waits, without using the CPU, if `stage` is this wait's stage.

        Call it once inside each stage of a batch.
        """
        if stage == self.stage:
            time.sleep(self.seconds)


def requested_wait(config: RunConfig, *, train: bool = True) -> Wait | None:
    """Returns the wait that `config` asks for in each training batch; None if it asks for none, or
    not for `train`.
    """
    if not train or config.inject is None:
        return None
    return Wait(*injection(config.inject))


def stopwatch_cost_s(n: int = 100, tries: int = 10) -> float:
    """Returns the seconds that timing one stage of one sample takes here: two readings of the clock,
    a sum, and whether it is looked at what the stage uses of the cores.

    It is the least of some tries, as other programs interrupt them.
    """
    stopwatch = Stopwatch()
    took_s = math.inf
    for _ in range(tries):
        begun = perf_counter()
        for _ in range(n):
            start = perf_counter()
            if stopwatch.look is not None:
                stopwatch.look.enter("read")
            stopwatch.read_s += perf_counter() - start
        took_s = min(took_s, perf_counter() - begun)
    return took_s / n


class OffCpu:
    """The time of some work in which its thread was off the CPU. It is entered as a context again
    and again.

    Off the CPU, a thread waits for Python's lock, for a core, or for a device that makes it sleep.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._wall_s = self._cpu_s = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()
        self._used = thread_time()

    def __exit__(self, *exc: object) -> None:
        self._cpu_s += thread_time() - self._used
        self._wall_s += perf_counter() - self._began

    @property
    def frac(self) -> float:
        """Returns the share of the work's time; NaN where there was none."""
        if not self._wall_s:
            return math.nan
        # The two clocks are read one after the other: short work can seem to use more than its
        # time.
        return max(0.0, 1 - self._cpu_s / self._wall_s)


class Stopwatch:
    """Seconds that the samples of one batch spent in each stage so far.

    For one thread at a time; can be pickled.
    """

    __slots__ = ("_wait", "decode_s", "due", "look", "noted", "read_s", "rest", "transform_s")

    def __init__(self, wait: Wait | None = None, look: StageLook | None = None) -> None:
        self.noted: tuple[Stage, ...] = ()
        """Stages that a Dataset times here while it makes a sample."""
        self.rest: Literal["read", "decode", ""] = ""
        """The stage that the rest of its `__getitem__` counts as; empty if neither."""
        self._wait = wait
        self.look = look
        """Looks at what the stages of this batch use of the cores; None for most batches."""
        self.restart()

    def restart(self) -> None:
        """Sets all times to 0 for the next batch, which is due its wait again."""
        self.read_s = self.decode_s = self.transform_s = 0.0
        self.due = self._wait

    def wait(self, stage: Stage) -> None:
        """Waits if the batch is still due a wait in `stage`: once a batch.

        Call it inside each stage of each sample.
        """
        if self.due is not None and self.due.stage == stage:
            self.due.into(stage)
            self.due = None

    def wait_for_rest(self) -> None:
        """Waits if the batch is due a wait in a stage that is not noted.

        Call it before the samples of a Dataset.
        """
        if self.due is None:
            return
        if self.rest:
            self.wait(self.rest)
        # If "read" is the rest, the wait is already done, and this one does nothing.
        if "read" not in self.noted:
            begun = perf_counter()
            self.wait("read")
            self.read_s += perf_counter() - begun

    def end_rest(self, begun_s: float) -> None:
        """Adds the time since `begun_s` that no stage noted to the stage `rest`.

        Call it after the samples.
        """
        if self.rest:
            whole_s = perf_counter() - begun_s
            if self.look is not None:
                whole_s -= self.look.spent_s
            rest_s = max(0.0, whole_s - self.read_s - self.decode_s - self.transform_s)
            if self.rest == "read":
                self.read_s += rest_s
            else:
                self.decode_s += rest_s
