"""Collects the marks of a training loop's steps, and resolves those of the device without making the loop wait for it.

Columns are derived from them later, many steps at once, in the thread that sends (`step_columns`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitprof.measure.batch_times import BatchTimes
from vitprof.measure.devices import Device, Mark
from vitprof.measure.launches import LaunchProbe

NAN = math.nan
MAX_PENDING = 512
"""Most steps that may wait to be resolved. CUDA lets the host run ahead by about 1,000 launches, a few dozen steps at
most. If more pile up the loop waits for the device: that bounds memory and costs the device nothing."""
DEVICE_MARKS = ("decoded", "copy_start", "compute_start", "copy_end", "prepared", "compute_end")
"""Fields of `StepMarks`; each None where there is none."""


@dataclass(slots=True, init=False, eq=False)
class StepMarks:
    """A step's host times and device marks. The loop that runs the step sets every field but the last three as it goes
    on. Once a recorder emits it, every mark is a time on the host's clock, and the loss a figure.

    There is no `__init__`, for speed: noting a step takes 0.15 us this way. A NamedTuple takes 0.32 us by position and
    0.87 us by name (medians of 200 interleaved rounds of 1,000 steps).
    """

    step: int
    epoch: int
    t_start: float
    """When the loop asked for the batch, in seconds on the host's clock, like the next two."""
    t_got: float
    """When the loop had the batch."""
    t_launched: float
    """When the last work of the step was launched."""
    decoded: Mark | None
    """In the training stream, after the loader's own work on the batch on the device; None where there is none. The
    stream waits for the batch up to here, however early the loop received it."""
    copy_start: Mark
    copy_end: Mark
    prepared: Mark | None
    """From `copy_end` to here the device prepared the batch for the step; None where that is part of the step."""
    compute_start: Mark
    """Where compute begins, as the trainer's `step` reports it.

    Often it is the end of the copy. Where a separate stream prepared the batch, the training stream passes this mark
    after the previous step and after the copy.
    """
    compute_end: Mark | None
    """None where nothing was computed."""
    loss: Any
    """A function that returns the loss, called once the device has passed the step; then the loss."""
    samples: int
    warmup: bool
    made: BatchTimes | None
    """Times of making the batch; None where the loader cannot tell."""
    outside_s: float
    """Seconds since the previous step that were neither part of a step nor a wait for a batch; NaN where unknown."""
    previous_end: float
    """When the device was done with the step before, or the mark of `StepRecorder.resume`: the gap counts from here."""
    kernel_s: float
    """What the launch probe says of a gated step; NaN of any other."""
    launch_idle_s: float
    """What the launch probe says of a step after the warm-up; NaN where it cannot tell."""


class StepRecorder:
    """Collector of the marks of steps; emits each step as soon as the device has passed it."""

    def __init__(self, device: Device, emit: Callable[[StepMarks], None], launches: LaunchProbe | None = None) -> None:
        self._device = device
        self._launches = launches or LaunchProbe(device, 0)
        self._emit = emit
        self._pending: deque[tuple[Mark, StepMarks | None]] = deque()
        """The last mark of each step with the step; None with a mark of `resume`."""
        self.previous_end = NAN
        """When the device was done with the last step that was emitted, or passed the last mark of `resume`."""

    def resume(self) -> None:
        """Makes the next step's gap count from now: at the start, and after anything that is not a step."""
        mark = self._device.mark()
        if self._device.immediate:
            self.previous_end = mark
        else:
            self._pending.append((mark, None))

    def step(self, marks: StepMarks) -> None:
        """Notes a step whose device work has been launched. The recorder keeps `marks` and changes them."""
        if self._device.immediate:  # with a fast loader a step takes 12 us: the queue would add a tenth of that
            marks.kernel_s = marks.launch_idle_s = NAN
            self._finish(marks)
            return
        reached = self._device.mark()  # after the loss's copy was queued: once this is passed, the loss is there too
        self._pending.append((reached, marks))
        self.resolve(at_most_pending=MAX_PENDING)

    def resolve(self, *, at_most_pending: int = 0) -> None:
        """Emits every step that the device has finished; waits only if more than `at_most_pending` are left."""
        pending, device = self._pending, self._device
        while pending:
            reached, marks = pending[0]
            if not device.reached(reached):
                if len(pending) <= at_most_pending:
                    return
                device.synchronize()
            pending.popleft()
            if marks is None:
                self.previous_end = device.seconds(reached)
            else:
                self._resolve(marks)
            device.release(reached)

    def _resolve(self, marks: StepMarks) -> None:
        """Turns the device's marks of a step that it has passed into times, releases them, and emits the step."""
        passed = [getattr(marks, name) for name in DEVICE_MARKS]
        for name, mark in zip(DEVICE_MARKS, passed, strict=True):
            if mark is not None:
                setattr(marks, name, self._device.seconds(mark))
        marks.kernel_s = marks.launch_idle_s = NAN
        if marks.compute_end is not None:
            end, compute_s = marks.compute_end, marks.compute_end - marks.compute_start
            if marks.warmup:
                host_s, lag_s = marks.t_launched - marks.t_got, end - marks.t_launched
                marks.kernel_s = self._launches.passed(marks.step, marks.samples, host_s, lag_s, compute_s)
            else:
                marks.launch_idle_s = self._launches.idle_s(marks.samples, compute_s)
        self._finish(marks)
        # a transfer that copies nothing uses one mark for all three; each is released once
        self._device.release(*{id(mark): mark for mark in passed if mark is not None}.values())

    def _finish(self, marks: StepMarks) -> None:
        marks.loss = marks.loss()
        marks.previous_end = self.previous_end
        self.previous_end = marks.compute_start if marks.compute_end is None else marks.compute_end
        self._emit(marks)
