"""Turns the marks of a training loop into step records, without ever waiting for the device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from vitprof.engine.batch import BatchTimes
from vitprof.engine.devices import Device, Mark
from vitprof.engine.events import StepRow

UNKNOWN = BatchTimes(*[math.nan] * 8)
"""Of a loader that cannot tell."""

MAX_PENDING = 512
"""Steps that may wait to be resolved. CUDA lets the host run ahead by about 1,000 launches, a few dozen steps at most;
if more pile up the loop waits for the oldest, which bounds memory and changes nothing the device would notice."""


def overlap(a_start: float, a_end: float, b_start: float, b_end: float) -> float:
    """Length of the intersection of two spans; 0 where they do not meet."""
    return max(0.0, min(a_end, b_end) - max(a_start, b_start))


class StepRecorder:
    """Collects a step's host times and device marks; hands on a row as soon as the device has passed them."""

    def __init__(self, device: Device, hand_on: Callable[[StepRow], None]) -> None:
        self._device = device
        self._hand_on = hand_on
        self._pending: deque[tuple[Mark, ...]] = deque()
        self._previous_end = math.nan

    def resume(self) -> None:
        """The next step's gap counts from here: at the start, and after anything that is not a step."""
        mark = self._device.mark()
        if self._device.immediate:
            self._previous_end = mark
        else:
            self._pending.append((mark,))

    def step(
        self,
        step: int,
        epoch: int,
        t_start: float,
        t_got: float,
        t_launched: float,
        copy_start: Mark,
        copy_end: Mark,
        ready: Mark,
        compute_end: Mark | None,
        loss: Callable[[], float],
        samples: int,
        warmup: bool,
        made: BatchTimes | None = None,
    ) -> None:
        """Take note of a step whose device work has been launched. Compute begins where the batch is `ready`.

        That is the end of the copy, unless a stream of its own made it: then the training stream passed `ready`
        after the step before and after the copy. `compute_end` is None where nothing was computed.
        """
        if self._device.immediate:  # a step of a fast loader takes 12 us: the queue would be a tenth of that
            end = ready if compute_end is None else compute_end
            h2d = copy_end - copy_start
            host = t_launched - t_got
            self._hand_on_row(
                step, epoch, t_start, t_got, host, copy_start, h2d, ready, end, samples, loss(), warmup, made
            )
            return
        reached = self._device.mark()  # after the loss was sent on its way: when this is passed, all of it is there
        host = t_launched - t_got
        marks = (reached, copy_start, copy_end, ready, compute_end)
        self._pending.append((*marks, step, epoch, t_start, t_got, host, loss, samples, warmup, made))
        self.resolve(at_most_pending=MAX_PENDING)

    def resolve(self, *, at_most_pending: int = 0) -> None:
        """Hand on every step the device has finished; wait only while more than `at_most_pending` are left."""
        pending, device = self._pending, self._device
        while pending:
            if not device.reached(pending[0][0]):
                if len(pending) <= at_most_pending:
                    return
                device.synchronize()
            entry = pending.popleft()
            if len(entry) == 1:
                self._previous_end = device.seconds(entry[0])
            else:
                self._finish(entry)
            device.release(entry[0])

    def _finish(self, entry: tuple[Mark, ...]) -> None:
        _, copy_start, copy_end, ready, compute_end, step, epoch, t_start, t_got, host, loss, samples, warmup, made = (
            entry
        )
        seconds = self._device.seconds
        h2d_start, start = seconds(copy_start), seconds(ready)
        h2d = seconds(copy_end) - h2d_start
        end = start if compute_end is None else seconds(compute_end)
        self._hand_on_row(step, epoch, t_start, t_got, host, h2d_start, h2d, start, end, samples, loss(), warmup, made)
        # a transfer that copies nothing gives one mark for all three; each is given back once
        marks = {id(mark): mark for mark in (copy_start, copy_end, ready, compute_end) if mark is not None}
        self._device.release(*marks.values())

    def _hand_on_row(
        self,
        step: int,
        epoch: int,
        t_start: float,
        t_got: float,
        host: float,
        h2d_start: float,
        h2d: float,
        start: float,
        end: float,
        samples: int,
        loss: float,
        warmup: bool,
        made: BatchTimes | None,
    ) -> None:
        """One row, in the order of `STEP_COLUMNS`; all times on the host's clock."""
        before = self._previous_end
        self._previous_end = end
        read_s, decode_s, transform_s, collate_s, made_start, made_end, worker, queue_depth = made or UNKNOWN
        self._hand_on(
            (
                0,
                step,
                epoch,
                t_start,
                t_got - t_start,
                h2d,
                start,
                end - start,
                start - before,
                overlap(t_start, t_got, before, start),
                end - before,
                samples,
                loss,
                warmup,
                read_s,
                decode_s,
                transform_s,
                collate_s,
                queue_depth,
                h2d_start,
                host,
                made_start,
                made_end,
                t_got - max(made_end, t_start) if made_end < t_got else math.nan,
                worker,
            )
        )
