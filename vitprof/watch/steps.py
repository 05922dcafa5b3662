"""Steps of a watched training: where each begins and ends, and what is known of it.

Imported when PyTorch is there, so that nothing has to be looked up in a step.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from torch import Tensor

from vitprof.engine.batch import BatchTimes
from vitprof.engine.devices import Device
from vitprof.engine.loaders.ready import n_ready
from vitprof.engine.recorder import StepMarks
from vitprof.watch.batches import NOTHING, Ahead, batch_times, n_samples, together
from vitprof.watch.copies import Copies
from vitprof.watch.guard import Guard
from vitprof.watch.recording import Recording
from vitprof.watch.session import Wanted
from vitprof.watch.timed import FetchTimes


class Steps:
    """Makes steps of what the loop tells, on the device that the script computes on.

    A step waits for a batch, or for several of them, and then works: backward passes, a step of the optimizer. Some
    frameworks fetch a batch ahead, or all that they accumulate gradients over. What they wait for is part of the step
    that comes after it, and where a batch is left when no more come, working on it is a step without samples. Where
    nothing ever tells of work (no backward pass of PyTorch's in the loop), each batch is a step.

    What the script calls a step itself (`enter`, `left`) is the work on a batch: what it does before that and after it
    is told apart.
    """

    def __init__(self, device: Device, guard: Guard, forking: threading.RLock, wanted: Wanted | None = None) -> None:
        self._device = device
        self.recording = Recording(device, guard, forking, wanted)
        self._copies = None if device.immediate else Copies(device, guard)
        self._marks: StepMarks | None = None
        """Of the step under way."""
        self._worked = False
        """Whether the step under way has worked on its batch."""
        self.expects_work = True
        """Whether a batch without any work on it was only fetched ahead; always, once a step has told of its work."""
        self.inside = False
        """Whether the script is in what it calls a step."""
        self._left_s = math.nan
        """When the script left the step before."""
        self._said = False
        """Whether the script has said that the step under way is done."""
        self._last = False
        """Whether no batch came for the step under way: the iteration is over."""
        self._noted: tuple[float, Any] | None = None
        """When the step under way may have ended, with the device's mark."""
        self._others, self._others_since_s = 0, math.nan
        """Batches of other loaders since the last backward pass, and when the first of them was asked for."""
        self._ahead = NOTHING
        """What the step under way waited for before its last batch."""
        self._queue_depth = math.nan
        self._scaled: tuple[Any, Any] = (None, None)
        """What a GradScaler made of a loss, and the loss."""

    @property
    def under_way(self) -> bool:
        """Returns whether a step has begun and not ended."""
        return self._marks is not None

    def drop(self) -> None:
        """Forgets what was recorded of a loader that turned out not to train."""
        self.recording.drop()
        self._marks = None
        self._ahead = NOTHING

    # the loader

    def begin_epoch(self) -> None:
        """An iteration has begun: what was fetched in the one before and not used is no part of it."""
        self._ahead = NOTHING

    def ask(self, iterator: Any) -> None:
        """Notes how many batches lie ready in a DataLoader's iterator that is asked for one."""
        self._queue_depth = n_ready(iterator)

    def kept_batch(self) -> Any:
        """Returns the batch that the script gets in place of a new one; None where it gets a new one."""
        replay = self.recording.replay
        return None if replay is None else replay.batch()

    def begin(self, epoch: int, asked_s: float, got_s: float, batch: Any, times: FetchTimes | None) -> None:
        """Begins the step of `batch`, which was asked for and given at these times; `times`: how it was made."""
        samples, made, replay = n_samples(batch), None, self.recording.replay
        if times is not None:
            made = batch_times(times, self._queue_depth)
            self.recording.transforms(times[-1], samples, got_s)
        marks = self._begin(epoch, asked_s, got_s, samples, made)
        if self._copies is not None:
            self._copies.begin(marks, batch, marks.compute_start, again=replay is not None and replay.replaying)
        if replay is not None and self.recording.warming_up:
            replay.keep(batch)

    def begin_last(self, epoch: int, asked_s: float, got_s: float) -> None:
        """No batch came: a step begins only if the script still has one, which the first backward pass will tell."""
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
        if self.inside:  # it asked for its batch inside its step
            self._enter(marks, got_s)
        return marks

    def ask_other(self, now_s: float) -> None:
        """Notes that another loader is asked for a batch with gradients on: for this step, or to validate."""
        if not self._others:
            self._others_since_s = now_s
            if self._noted is None:
                self._note_end(now_s)
        self._others += 1

    def end(self, now_s: float) -> None:
        """Ends the step under way, if there is one; what was only fetched until now is part of the next one.

        Some frameworks validate with gradients on. Two batches of another loader and no backward pass after them, or
        one after the last batch of an epoch, were that.
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
        """A backward pass begins, from the loss or from several of them."""
        marks = self._marks
        if marks is None:
            return
        self._worked = self.expects_work = True
        self._others = 0
        if isinstance(differentiated, (list, tuple)):
            differentiated = differentiated[0] if len(differentiated) == 1 else None
        result, loss = self._scaled
        self._scaled = (None, None)
        if differentiated is not result or loss is None:
            loss = differentiated
        if type(loss) is Tensor and loss.numel() == 1 and loss.device == self._device.torch_device:
            if loss.is_cuda and torch.cuda.is_current_stream_capturing():  # it would be part of the graph
                return
            marks.loss = self._device.keep(loss)

    def scaled(self, loss: Any, result: Any) -> None:
        """A GradScaler has made `result` of `loss`."""
        self._scaled = (result, loss)

    def optimizer_stepped(self, now_s: float) -> None:
        """A step of an optimizer is work, too, unless it comes after the last batch: that one has been counted."""
        if not self._last:
            self._worked = self.expects_work = True
        elif self._worked and not self._said:  # nobody asks for a batch after it
            self._note_end(now_s)

    def enter(self, now_s: float) -> None:
        """The script begins what it calls a step."""
        self.inside = True
        if self._marks is not None and not self._said:  # of several for a batch, the first one begins it
            self._enter(self._marks, now_s)

    def left(self, now_s: float) -> None:
        """The script has done what it calls a step. Of several for a batch, the last one ends it."""
        self.inside = False
        if self._marks is None:
            return
        self._worked = self.expects_work = self._said = True
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
        """Has the next step's gap count from here."""
        self._left_s = math.nan
        self.recording.resume()

    def pause(self, status: str, error: str) -> None:
        """The run is over for now: sends what the device has passed."""
        if self.recording.confirmed:
            self._tell()
            self.recording.pause(status, error)

    def leave(self) -> None:
        """Sends what the device has passed."""
        if self.recording.confirmed:
            self._tell()
        self.close()

    def _tell(self) -> None:
        """Tells all that is known by now. The step under way has no end, unless the script has left it, or it is the
        last of an epoch.
        """
        if (self._last or self._said) and self._noted is not None:
            self._others = 0
            self.end(self._noted[0])
        self._marks = None
        self.recording.tell()

    def close(self) -> None:
        """Sends what there is, and nothing any more."""
        if self._copies is not None:
            self._copies.close()
        self.recording.close()


def _no_loss() -> float:
    return math.nan
