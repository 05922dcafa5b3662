"""Collects the marks of a training loop's steps, and resolves those of the device without making the loop wait for it.

Columns are derived from them later, many steps at once, in the thread that sends (`step_columns`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from vitprof.measure.devices import Device, Mark
from vitprof.measure.launches import LaunchProbe
from vitprof.measure.step_columns import StepMarks

NAN = math.nan
MAX_PENDING = 512
"""Most steps that may wait to be resolved. CUDA lets the host run ahead by about 1,000 launches, a few dozen steps at
most. If more pile up the loop waits for the device: that bounds memory and costs the device nothing."""
DEVICE_MARKS = ("decoded", "copy_start", "compute_start", "copy_end", "prepared", "compute_end")
"""Fields of `StepMarks`; each None where there is none."""


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
