"""A script on a device that works on its own, written by hand: what it launches takes its time there, and
marks are passed when all before them in their stream is done."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tests.watch.core.written import CHECK, MAIN, OPTIMIZER, SAMPLES, Script
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.device_columns import DeviceFigures, DeviceSteps
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import NAN, Kind, MarkedPoint

DEVICE = 7
A_MOMENT_S = 1e-9
WORK, COPIES, ASIDE = 1, 2, 3
"""Streams."""


class DeviceScript(Script):
    """`forward_s`, `backward_s`, `update_s`: how long the device works on each. The host launches them in
    `work_s`."""

    def __init__(
        self,
        wait_s: float = 0.010,
        work_s: float = 0.001,
        forward_s: float = 0.002,
        backward_s: float = 0.004,
        update_s: float = 0.002,
    ) -> None:
        super().__init__(wait_s, work_s)
        self._took_s = (forward_s, backward_s, update_s)
        self._busy_until_s: dict[int, float] = defaultdict(float)
        self._pending: list[tuple[int, float, float]] = []
        self._tokens = 0
        self._captures = False

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Sets no marks meanwhile, as while a CUDA graph is captured."""
        self._captures = True
        yield
        self._captures = False

    def launch(self, seconds: float, stream: int = WORK) -> None:
        """Gives the device work, after what it has to do in that stream."""
        self._busy_until_s[stream] = max(self.now_s, self._busy_until_s[stream]) + seconds

    def wait_for_device(self) -> None:
        self.now_s = max(self.now_s, *self._busy_until_s.values())

    def mark(self, place: MarkedPoint, stream: int = WORK, loss: float = NAN) -> None:
        if self._captures:
            return
        self._tokens += 1
        reached_s = max(self.now_s, self._busy_until_s[stream])
        self._pending.append((self._tokens, reached_s, loss))
        self._add(Kind.MARKED, MAIN, DEVICE, self._tokens, place, stream)

    def pass_marks(self, until_s: float = math.inf) -> None:
        """Records the marks that the device has passed by then."""
        for token, reached_s, loss in self._pending:
            if reached_s <= until_s:
                self._add(Kind.REACHED, MAIN, DEVICE, token, reached_s, loss)
        self._pending = [mark for mark in self._pending if mark[1] > until_s]

    def fetch(
        self, loader: int, *, quiet: bool = False, thread: int = MAIN, samples: float = SAMPLES
    ) -> None:
        self.mark(MarkedPoint.REQUESTED)
        super().fetch(loader, quiet=quiet, thread=thread, samples=samples)
        self.mark(MarkedPoint.RECEIVED)

    def begin_slowly(self, loader: int, seconds: float) -> None:
        """Begins an iteration that starts workers."""
        self.mark(MarkedPoint.REQUESTED)
        since_s = self.now_s
        self.now_s += seconds
        self.begin(loader)
        begun = self.log.events.pop()
        self.log.events.append(begun._replace(values=(begun.values[0], since_s, NAN)))

    def copy(self, seconds: float, stream: int = WORK, to_device: bool = True) -> None:
        """Copies a tensor of a batch."""
        if stream != WORK:
            self.mark(MarkedPoint.BEFORE_COPY)
        self.mark(MarkedPoint.COPYING, stream)
        if to_device:
            self.launch(seconds, stream)
            self.mark(MarkedPoint.COPIED, stream)

    def backward(self, thread: int = MAIN, loss: float = NAN) -> None:
        self.launch(self._took_s[0])
        super().backward(thread)
        self.mark(MarkedPoint.BACKWARD, loss=loss)
        self.launch(self._took_s[1])

    def update(self, optimizer: int = OPTIMIZER, thread: int = MAIN) -> None:
        self.now_s += self._work_s
        if thread == MAIN:
            self.mark(MarkedPoint.STEPPING)
        self.launch(self._took_s[2])
        self.now_s += A_MOMENT_S
        self._add(Kind.STEPPED, thread, optimizer)
        if thread == MAIN:
            self.mark(MarkedPoint.STEPPED)

    def enter(self) -> None:
        self.work(Kind.ENTERED)
        self.mark(MarkedPoint.ENTERED)

    def leave(self) -> None:
        self.work(Kind.LEFT)
        self.mark(MarkedPoint.LEFT)

    def evaluate(self, n: int, seconds: float) -> None:
        for _ in range(n):
            self.fetch(CHECK, quiet=True)
            self.copy(0.001)
            self.launch(seconds)
            self.now_s += self._work_s


def told(script: DeviceScript) -> dict[str, list[float]]:
    """Returns the columns of a script's steps, rounded to microseconds."""
    script.pass_marks()
    training = find_training(script.log)
    assert training is not None
    device = DeviceSteps(warmup_steps=0)
    device.add(script.log.events, find_steps(training).steps)
    steps, figures = device.take(training.thread, finished=True)
    columns = columns_of(steps, device=figures)
    return {name: [round(value, 6) for value in column] for name, column in columns.items()}


def figures_of(script: DeviceScript) -> list[DeviceFigures | None]:
    """Returns the figures of its steps, as far as the device has passed them."""
    training = find_training(script.log)
    assert training is not None
    device = DeviceSteps(warmup_steps=0)
    device.add(script.log.events, find_steps(training).steps)
    return device.take(training.thread)[1]
