"""Steps of a watched training: what is known of each becomes a record, and is held until it is sure to be training.

Imported when PyTorch is there, so that nothing has to be looked up in a step.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from vitprof.engine.batch import BatchTimes
from vitprof.engine.devices import open_device
from vitprof.engine.loaders.ready import n_ready
from vitprof.engine.recorder import StepMarks, StepRecorder
from vitprof.watch.guard import Guard
from vitprof.watch.session import Session
from vitprof.watch.timed import FetchTimes

WARMUP_STEPS = 5


class Steps:
    """Records steps on the device that the script computes on, and sends them once `confirm` was called."""

    def __init__(self, guard: Guard, forking: threading.RLock, clock: Callable[[], float]) -> None:
        on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._device = open_device(f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu", clock)
        self._recorder = StepRecorder(self._device, self._hand_on)
        self._session = Session(guard, forking)
        self.confirmed = False
        """Whether an optimizer has stepped: what was recorded is training."""
        self._held: list[tuple[float, ...]] = []
        """Rows until then."""
        self._marks: StepMarks | None = None
        """Of the step under way."""
        self.n = 0
        """Steps begun."""
        self._queue_depth = math.nan

    @property
    def under_way(self) -> bool:
        """Returns whether a step has begun and not ended."""
        return self._marks is not None

    def drop(self) -> None:
        """Forgets what was recorded of a loader that turned out not to train."""
        self._held.clear()
        self._marks = None
        self.n = 0

    def confirm(self, loader: dict[str, Any]) -> None:
        """Sends what was held, and from here on every step. `loader`: see `session.loader_facts`."""
        self._session.begin(self._device, loader)
        self.confirmed = True
        for row in self._held:
            self._session.step(row)
        self._held.clear()

    def ask(self, iterator: Any) -> None:
        """Notes how many batches lie ready in a DataLoader's iterator that is asked for one."""
        self._queue_depth = n_ready(iterator)

    def begin(self, epoch: int, asked_s: float, got_s: float, batch: Any, times: FetchTimes | None) -> None:
        """Begins the step of `batch`, which was asked for and given at these times; `times`: how it was made."""
        marks = StepMarks()
        marks.step, marks.epoch, marks.samples = self.n, epoch, n_samples(batch)
        marks.t_start, marks.t_got = asked_s, got_s
        marks.decoded = marks.prepared = None
        marks.loss = _no_loss
        marks.warmup = self.n < WARMUP_STEPS
        marks.made = None
        if times is not None:
            dataset_s, transform_s, collate_s, start_s, end_s, worker = times
            number = math.nan if worker < 0 else float(worker)
            read_s = max(0.0, dataset_s - transform_s)
            marks.made = BatchTimes(read_s, math.nan, transform_s, collate_s, start_s, end_s, number, self._queue_depth)
        self.n += 1
        self._marks = marks
        marks.copy_start = marks.copy_end = marks.compute_start = self._device.mark()

    def end(self, now_s: float) -> None:
        """Ends the step under way, if there is one."""
        marks, self._marks = self._marks, None
        if marks is None:
            return
        marks.t_launched = now_s
        marks.compute_end = self._device.mark()
        self._recorder.step(marks)

    def resume(self) -> None:
        """Has the next step's gap count from here."""
        self._recorder.resume()

    def phase(self, name: str, since_s: float, until_s: float) -> None:
        """Notes a stretch of time that belongs to no step."""
        self._session.phase(name, since_s, until_s)

    def leave(self) -> None:
        """Sends what the device has passed; the step under way has no end."""
        if self.confirmed:
            self._recorder.resolve()
        self.close()

    def close(self) -> None:
        """Sends what there is, and nothing any more."""
        self._session.close()

    def _hand_on(self, row: tuple[float, ...]) -> None:
        (self._session.step if self.confirmed else self._held.append)(row)


def _no_loss() -> float:
    return math.nan


def n_samples(batch: Any) -> int:
    """Returns the length of the first tensor of a batch, in whatever containers; 0 where there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else 1
    if isinstance(batch, dict) or hasattr(batch, "values"):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((n for n in map(n_samples, batch) if n), 0)
    return 0
