"""Steps of a watched training: where each begins and ends, and what is known about it.

This is imported only after PyTorch, so that a step has to import nothing.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from torch import Tensor

from vitprof.measure.batch_times import BatchTimes, n_ready
from vitprof.measure.devices import Device
from vitprof.measure.recorder import StepMarks
from vitprof.watch.batches import NOTHING, Ahead, batch_times, n_samples, together
from vitprof.watch.copies import Copies
from vitprof.watch.fast_path import Fetched, fetched, times_of
from vitprof.watch.fetch_times import FetchTimes
from vitprof.watch.guard import Guard
from vitprof.watch.session import Wanted
from vitprof.watch.step_buffer import StepBuffer


class Steps:
    """The steps made of the loop's events, on the device that the script computes on.

    A step waits for one or several batches, and then works: backward passes, a step of the optimizer. Some frameworks
    fetch a batch ahead, or all batches that they accumulate gradients over. Their waits are part of the step that
    follows. If a batch fetched ahead is left when no more come, the work on it is a step without samples. Where no work
    is ever seen (no backward pass of PyTorch in the loop), each batch is a step.

    A step that the script marks (`enter`, `left`) is the work on a batch; the time before and after it is recorded
    apart.
    """

    def __init__(self, device: Device, guard: Guard, forking: threading.RLock, wanted: Wanted | None = None) -> None:
        self._device = device
        self.recording = StepBuffer(device, guard, forking, wanted)
        self._copies = None if device.immediate else Copies(device, guard)
        self._marks: StepMarks | None = None
        """The marks of the current step."""
        self._worked = False
        """Whether the current step has worked on its batch."""
        self.expects_work = True
        """Whether a batch without any work on it counts as fetched ahead; True once any work was seen."""
        self.inside = False
        """Whether the script is in a step that it marks."""
        self._left_s = math.nan
        """When the script left the previous step that it marks."""
        self._said = False
        """Whether the script has left the current step."""
        self._last = False
        """Whether no batch came for the current step: the iteration is over."""
        self._noted: tuple[float, Any] | None = None
        """When the current step may have ended, with the device's mark."""
        self._others, self._others_since_s = 0, math.nan
        """The number of batches of other loaders since the last backward pass, and when the first was requested."""
        self._joined = self._validated = False
        """Whether the current step worked on another loader's batch, and whether the last one ended in validation."""
        self._ahead = NOTHING
        """The batches that the current step waited for before its last one."""
        self.queue_depth = math.nan
        """The number of batches that were ready when the last one was requested."""
        self._scaled: tuple[Any, Any] = (None, None)
        """A loss scaled by a GradScaler, and the loss."""

    @property
    def under_way(self) -> bool:
        """Returns whether a step has begun and not ended."""
        return self._marks is not None

    def drop(self) -> None:
        """Drops what was recorded for a loader that turned out not to train."""
        self.recording.drop()
        self._marks = None
        self._ahead = NOTHING

    # the loader

    def begin_epoch(self) -> None:
        """Begins an epoch: batches fetched in the previous iteration and not used are not part of it."""
        self._ahead = NOTHING

    def ask(self, iterator: Any) -> None:
        """Records the number of batches that are ready in a DataLoader's iterator as one is requested."""
        self.queue_depth = n_ready(iterator)

    def kept_batch(self) -> Any:
        """Returns the kept batch that the script gets instead of a new one; None where it gets a new one."""
        replay = self.recording.replay
        return None if replay is None else replay.batch()

    def begin(self, epoch: int, asked_s: float, got_s: float, batch: Any, times: FetchTimes | None) -> None:
        """Begins the step of `batch`, which was requested and returned at these times; `times`: how it was made."""
        samples, made, replay = n_samples(batch), None, self.recording.replay
        if times is not None:
            made = batch_times(times, self.queue_depth)
            self.recording.add_transforms(times[-1], samples)
        marks = self._begin(epoch, asked_s, got_s, samples, made)
        if self._copies is not None:
            self._copies.begin(marks, batch, marks.compute_start, again=replay is not None and replay.replaying)
        if replay is not None and self.recording.warming_up:
            replay.keep(batch)

    def begin_last(self, epoch: int, asked_s: float, got_s: float) -> None:
        """Begins a step without a batch, at an iteration's end: the script may still have one that it fetched ahead. It
        counts only if the script works on it.
        """
        self._begin(epoch, asked_s, got_s, 0, None)
        self._last = True

    def _begin(self, epoch: int, asked_s: float, got_s: float, samples: int, made: BatchTimes | None) -> StepMarks:
        ahead = self._ahead
        self._marks = marks = StepMarks()
        self._worked = self._last = False
        marks.epoch, marks.samples = epoch, samples + ahead.samples
        marks.t_start, marks.t_got = asked_s - ahead.wait_s, got_s
        marks.decoded = marks.prepared = None
        marks.loss = _no_loss
        marks.made = together(ahead.made, made)
        marks.outside_s = math.nan
        marks.copy_start = marks.copy_end = marks.compute_start = self._device.mark()
        if self.inside:  # the script requested the batch inside its step
            self._enter(marks, got_s)
        return marks

    def set_aside(self, times: FetchTimes | None) -> Fetched | None:
        """Hands over the step that has just begun, where nothing sets it apart from those of a plain loop; None where
        something does. `times`: how its batch was made.
        """
        marks, recording = self._marks, self.recording
        if marks is None or marks.samples == 0 or self._ahead is not NOTHING:
            return None
        if not (recording.may_be_plain and recording.confirmed and self.expects_work) or recording.warming_up:
            return None
        if self._others or self._said or self._noted is not None or self._scaled[1] is not None:
            return None
        self._marks = None
        return fetched(marks.t_start, marks.t_got, marks.samples, self.queue_depth, times)

    def reopen(self, epoch: int, batch: Fetched, loss: float, *, worked: bool) -> None:
        """Goes on with a step that was set aside, or with a later one of the same plain loop."""
        asked_s, got_s, samples, self.queue_depth, *_ = batch
        times = times_of(batch)
        made = None if times is None else batch_times(times, self.queue_depth)
        marks = self._begin(epoch, asked_s, got_s, int(samples), made)
        marks.copy_start = marks.copy_end = marks.compute_start = got_s
        if worked:
            self._worked = self.expects_work = True
            marks.loss = lambda: loss

    def ask_other(self, now_s: float) -> None:
        """Notes that a batch of another loader is requested with gradients on: for this step, or to validate."""
        if not self._others:
            self._others_since_s = now_s
            if self._noted is None:
                self._note_end(now_s)
        self._others += 1

    def end(self, now_s: float) -> None:
        """Ends the current step, if there is one. Batches that were fetched but not worked on belong to the next step.

        Some frameworks validate with gradients on: two batches of another loader without a backward pass after them, or
        one after the last batch of an epoch, count as validation.
        """
        marks, self._marks = self._marks, None
        if marks is None:
            return
        noted, self._noted = self._noted, None
        others, self._others = self._others, 0
        validated = others > (not self._last)
        if self._copies is not None:
            self._copies.end()
        said, self._said = self._said, False
        if self._worked or not (self.expects_work or self._last):
            if noted is not None and not (validated or self._last or said):
                self._device.release(noted[1])
                noted = None
            if not said:
                self._left_s = math.nan
            self._ahead = NOTHING
            # after every step there is no validation: several loaders are asked in turn
            if self._joined or (self._validated if validated else others > 0):
                self.recording.count_joined()
            self._joined, self._validated = False, validated
            self.recording.step(marks, *(noted or (now_s, self._device.mark())))
        else:
            self._ahead = NOTHING if self._last else Ahead(marks.t_got - marks.t_start, marks.samples, marks.made)
            self._device.release(*{id(m): m for m in (marks.copy_start, marks.copy_end, marks.compute_start)}.values())
        if validated:
            self.resume()
            self.recording.phase("evaluate", self._others_since_s, now_s)

    def _note_end(self, now_s: float) -> None:
        if self._noted is not None:
            self._device.release(self._noted[1])
        self._noted = (now_s, self._device.mark())

    # the work

    def backward(self, differentiated: Any) -> None:
        """Takes the beginning of a backward pass, from one or several losses."""
        marks = self._marks
        if marks is None:
            return
        self._worked = self.expects_work = True
        self._joined |= self._others > 0
        self._others = 0
        if isinstance(differentiated, (list, tuple)):
            differentiated = differentiated[0] if len(differentiated) == 1 else None
        result, loss = self._scaled
        self._scaled = (None, None)
        if differentiated is not result or loss is None:
            loss = differentiated
        if type(loss) is Tensor and loss.numel() == 1 and loss.device == self._device.torch_device:
            if loss.is_cuda and torch.cuda.is_current_stream_capturing():  # a copy would become part of the graph
                return
            marks.loss = self._device.keep(loss)

    def scaled(self, loss: Any, result: Any) -> None:
        """Takes the `result` of a GradScaler for `loss`."""
        self._scaled = (result, loss)

    def optimizer_stepped(self, now_s: float) -> None:
        """Takes a step of an optimizer: it is work, too, unless it comes after the last batch, which was counted."""
        if not self._last:
            self._worked = self.expects_work = True
        elif self._worked and not self._said:  # no request for a batch will end this step
            self._note_end(now_s)

    def enter(self, now_s: float) -> None:
        """Begins a step that the script marks."""
        self.inside = True
        if self._marks is not None and not self._said:  # if a batch has several, the first one begins the work
            self._enter(self._marks, now_s)

    def left(self, now_s: float) -> None:
        """Ends a step that the script marks. If a batch has several, the last one ends the work."""
        self.inside = False
        if self._marks is None:
            return
        self._worked = self.expects_work = self._said = True
        self._joined |= self._others > 0
        self._others = 0
        self._left_s = now_s
        self._note_end(now_s)

    def _enter(self, marks: StepMarks, now_s: float) -> None:
        since_s = self._left_s if math.isfinite(self._left_s) else marks.t_start
        marks.outside_s = max(0.0, now_s - since_s - (marks.t_got - marks.t_start))
        given = marks.compute_start
        marks.compute_start = self._device.mark()
        if given is not marks.copy_start and given is not marks.copy_end:
            self._device.release(given)

    # the rest

    def resume(self) -> None:
        """Makes the next step's gap count from here."""
        self._left_s = math.nan
        self.recording.resume()

    def pause(self, status: str, error: str) -> None:
        """Ends the run for now, and sends the steps that the device has finished."""
        if self.recording.confirmed:
            self._tell()
            self.recording.pause(status, error)

    def leave(self) -> None:
        """Sends the steps that the device has finished, and ends the recording."""
        if self.recording.confirmed:
            self._tell()
        self.close()

    def _tell(self) -> None:
        """Sends all steps that have ended. The current step has no end, unless the script has left it, or it is the
        last of an epoch.
        """
        if (self._last or self._said) and self._noted is not None:
            self._others = 0
            self.end(self._noted[0])
        self._marks = None
        self.recording.flush()

    def close(self) -> None:
        """Sends what is left, and ends the recording."""
        if self._copies is not None:
            self._copies.close()
        self.recording.close()


def _no_loss() -> float:
    return math.nan
