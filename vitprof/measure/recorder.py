"""Turns the marks of a training loop into step records, without making the loop wait for the device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitprof.measure.devices import Device, Mark
from vitprof.measure.events import StepRow
from vitprof.measure.launches import LaunchProbe

Figures = NDArray[np.float64]
NAN = math.nan
MAX_PENDING = 512
"""Most steps that may wait to be resolved. CUDA lets the host run ahead by about 1,000 launches, a few dozen steps at
most. If more pile up the loop waits for the device: that bounds memory and costs the device nothing."""


def overlap(a_start: float, a_end: float, b_start: float, b_end: float) -> float:
    """Returns the length of the intersection of two spans; 0 where they do not meet."""
    return max(0.0, min(a_end, b_end) - max(a_start, b_start))


class BatchTimes(NamedTuple):
    """Times of making one batch, in any thread or process: durations, and moments on the host's monotonic clock."""

    read_s: float
    """Seconds spent reading bytes from storage, summed over the samples. This and the next three are NaN where a stage
    cannot be told apart."""
    decode_s: float
    """Seconds spent decoding and cropping."""
    transform_s: float
    """Seconds spent in transforms and augmentation."""
    collate_s: float
    """Seconds spent putting the samples into one batch."""
    start_s: float
    """When work on the batch began."""
    end_s: float
    """When the batch was complete."""
    worker: float = math.nan
    """Number of the worker process that made it; NaN where none did."""
    queue_depth: float = math.nan
    """Batches that were ready when the training loop asked for this one."""


UNKNOWN_TIMES = BatchTimes(*[NAN] * 8)
"""The times of a loader that cannot tell."""


@dataclass(slots=True, init=False, eq=False)
class StepMarks:
    """A step's host times and device marks. The loop that runs the step sets every field as it goes on.

    There is no `__init__`, for speed: recording a step takes 0.98 us this way, in a step of 12 us. It would take 0.82
    us with 13 positional arguments through three signatures, and 1.30 us with a NamedTuple or anything else whose
    construction runs Python code (lower deciles of 800 interleaved rounds of 1,000 steps, on a busy machine).
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
    loss: Callable[[], float]
    """Returns the loss; called once the device has passed the step."""
    samples: int
    warmup: bool
    made: BatchTimes | None
    """Times of making the batch; None where the loader cannot tell."""
    outside_s: float
    """Seconds since the previous step that were neither part of a step nor a wait for a batch; NaN where unknown."""


class PlainColumns(NamedTuple):
    """Finished steps of a device on which work is done when the call returns, one after another without a pause, each
    (n,) float64: the end of a step is the request for the next one's batch. Named as the fields of `StepMarks` and of
    `BatchTimes`.
    """

    step: Figures
    epoch: Figures
    t_start: Figures
    t_got: Figures
    t_end: Figures
    samples: Figures
    loss: Figures
    read_s: Figures
    transform_s: Figures
    collate_s: Figures
    start_s: Figures
    end_s: Figures
    worker: Figures
    queue_depth: Figures


class StepRecorder:
    """Collector of the marks of steps; hands on a row for each step as soon as the device has passed it."""

    def __init__(self, device: Device, hand_on: Callable[[StepRow], None], launches: LaunchProbe | None = None) -> None:
        self._device = device
        self._launches = launches or LaunchProbe(device, 0)
        self._hand_on = hand_on
        self._pending: deque[tuple[Mark, StepMarks | None]] = deque()
        """The last mark of each step with the step; None with a mark of `resume`."""
        self._previous_end = math.nan

    def resume(self) -> None:
        """Makes the next step's gap count from now: at the start, and after anything that is not a step."""
        mark = self._device.mark()
        if self._device.immediate:
            self._previous_end = mark
        else:
            self._pending.append((mark, None))

    def step(self, marks: StepMarks) -> None:
        """Notes a step whose device work has been launched. The recorder keeps `marks` and changes them."""
        if self._device.immediate:  # with a fast loader a step takes 12 us: the queue would add a tenth of that
            self._hand_on_row(marks)
            return
        reached = self._device.mark()  # after the loss's copy was queued: once this is passed, the loss is there too
        self._pending.append((reached, marks))
        self.resolve(at_most_pending=MAX_PENDING)

    def resolve(self, *, at_most_pending: int = 0) -> None:
        """Hands on every step that the device has finished; waits only if more than `at_most_pending` are left."""
        pending, device = self._pending, self._device
        while pending:
            reached, marks = pending[0]
            if not device.reached(reached):
                if len(pending) <= at_most_pending:
                    return
                device.synchronize()
            pending.popleft()
            if marks is None:
                self._previous_end = device.seconds(reached)
            else:
                self._finish(marks)
            device.release(reached)

    def plain_rows(self, plain: PlainColumns) -> Figures:
        """Returns the rows of these steps, (n, len(STEP_COLUMNS)) float64, as `step` hands them on: a tenth of the
        work, for steps that follow those before without a pause.
        """
        t_start, t_got, t_end, made_end = plain.t_start, plain.t_got, plain.t_end, plain.end_s
        before = np.concatenate([[self._previous_end], t_end[:-1]])
        self._previous_end = float(t_end[-1])
        columns = (
            0.0,
            plain.step,
            plain.epoch,
            t_start,
            t_got - t_start,
            0.0,
            t_got,
            t_end - t_got,
            t_got - before,
            np.maximum(0.0, t_got - np.maximum(t_start, before)),
            t_end - before,
            plain.samples,
            plain.loss,
            0.0,
            plain.read_s,
            NAN,
            plain.transform_s,
            plain.collate_s,
            plain.queue_depth,
            t_got,
            t_end - t_got,
            plain.start_s,
            made_end,
            np.where(made_end < t_got, t_got - np.maximum(made_end, t_start), NAN),
            plain.worker,
            NAN,
            NAN,
            NAN,
            NAN,
            NAN,
        )
        rows = np.empty((len(t_end), len(columns)))
        for i, column in enumerate(columns):
            rows[:, i] = column
        return rows

    def _finish(self, marks: StepMarks) -> None:
        """Hands on a step that the device has passed: turns its marks into times and releases them."""
        passed = (
            marks.copy_start,
            marks.copy_end,
            marks.compute_start,
            marks.compute_end,
            marks.decoded,
            marks.prepared,
        )
        seconds = self._device.seconds
        if marks.decoded is not None:
            marks.decoded = seconds(marks.decoded)
        marks.copy_start, marks.compute_start = seconds(marks.copy_start), seconds(marks.compute_start)
        marks.copy_end = seconds(marks.copy_end)
        if marks.prepared is not None:
            marks.prepared = seconds(marks.prepared)
        kernel_s = launch_idle_s = NAN
        if marks.compute_end is not None:
            marks.compute_end = end = seconds(marks.compute_end)
            compute_s = end - marks.compute_start
            if marks.warmup:
                host_s, lag_s = marks.t_launched - marks.t_got, end - marks.t_launched
                kernel_s = self._launches.passed(marks.step, marks.samples, host_s, lag_s, compute_s)
            else:
                launch_idle_s = self._launches.idle_s(marks.samples, compute_s)
        self._hand_on_row(marks, kernel_s, launch_idle_s)
        # a transfer that copies nothing uses one mark for all three; each is released once
        self._device.release(*{id(mark): mark for mark in passed if mark is not None}.values())

    def _hand_on_row(self, marks: StepMarks, kernel_s: float = NAN, launch_idle_s: float = NAN) -> None:
        """Hands on one row, in the order of `STEP_COLUMNS`; all marks are already times on the host's clock."""
        t_start, t_got, h2d_start, start = marks.t_start, marks.t_got, marks.copy_start, marks.compute_start
        end = start if marks.compute_end is None else marks.compute_end
        before = self._previous_end
        self._previous_end = end
        made = marks.made or UNKNOWN_TIMES
        read_s, decode_s, transform_s, collate_s, made_start, made_end, worker, queue_depth = made
        wait_s, exposed_s = t_got - t_start, overlap(t_start, t_got, before, start)
        gap_s, compute_s = start - before, end - start
        decode_wait_s = device_prepare_s = NAN
        if marks.decoded is not None:
            decode_wait_s = max(0.0, min(marks.decoded, start) - max(t_got, before))
            wait_s, exposed_s = wait_s + decode_wait_s, exposed_s + decode_wait_s
            made_end = max(made_end, marks.decoded) if decode_wait_s else made_end
        if marks.prepared is not None:
            began, ended = max(marks.copy_end, before), min(marks.prepared, start)
            device_prepare_s = max(0.0, ended - began)
            exposed_s -= overlap(t_start, t_got, began, ended)
            gap_s, compute_s = gap_s - device_prepare_s, compute_s + device_prepare_s
        self._hand_on(
            (
                0,
                marks.step,
                marks.epoch,
                t_start,
                wait_s,
                marks.copy_end - h2d_start,
                start,
                compute_s,
                gap_s,
                exposed_s,
                end - before,
                marks.samples,
                marks.loss(),
                marks.warmup,
                read_s,
                decode_s,
                transform_s,
                collate_s,
                queue_depth,
                h2d_start,
                marks.t_launched - t_got,
                made_start,
                made_end,
                t_got - max(made_end, t_start) if made_end < t_got else NAN,
                worker,
                kernel_s,
                launch_idle_s,
                decode_wait_s,
                device_prepare_s,
                marks.outside_s,
            )
        )
