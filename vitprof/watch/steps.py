"""Steps of a watched training: what is known of each becomes a record, and is held until it is sure to be training.

Imported when PyTorch is there, so that nothing has to be looked up in a step.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitprof.engine.batch import BatchTimes
from vitprof.engine.devices import Device
from vitprof.engine.loaders.ready import n_ready
from vitprof.engine.recorder import StepMarks, StepRecorder
from vitprof.watch.copies import Copies, tensors
from vitprof.watch.guard import Guard
from vitprof.watch.on_import import is_watched_rank
from vitprof.watch.replay import Replay
from vitprof.watch.session import Session, Unheard, Wanted
from vitprof.watch.timed import FetchTimes
from vitprof.watch.transforms import TransformSums

WARMUP_STEPS = 5


class Ahead(NamedTuple):
    """Batches that a step has waited for, and what is known of them."""

    wait_s: float
    samples: int
    made: BatchTimes | None
    """Their stages together, from the first one's beginning to the last one's end."""


NOTHING = Ahead(0.0, 0, None)


class Steps:
    """Records steps on the device that the script computes on, and sends them once `confirm` was called.

    A step waits for a batch, or for several of them, and then works: backward passes, a step of the optimizer. Some
    frameworks fetch a batch ahead, or all that they accumulate gradients over. What they wait for is part of the step
    that comes after it, and where a batch is left when no more come, working on it is a step without samples. Where
    nothing ever tells of work (no backward pass of PyTorch's in the loop), each batch is a step.

    What the script calls a step itself (`enter`, `left`) is the work on a batch: what it does before that and after it
    is told apart.
    """

    def __init__(self, device: Device, guard: Guard, forking: threading.RLock, wanted: Wanted | None = None) -> None:
        self._device = device
        self._recorder = StepRecorder(device, self._hand_on)
        self._session = Session(guard, forking, wanted) if is_watched_rank() else Unheard()
        self._copies = None if device.immediate else Copies(device, guard)
        self.confirmed = False
        """Whether an optimizer has stepped: what was recorded is training."""
        self._held: list[tuple[float, ...]] = []
        """Rows until then."""
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
        self.n = 0
        """Steps that have ended."""
        self._queue_depth = math.nan
        self._scaled: tuple[Any, Any] = (None, None)
        """What a GradScaler made of a loss, and the loss."""
        self._transforms = TransformSums()
        self._replay: Replay | None = None
        self._replaying_since_s = math.nan

    @property
    def under_way(self) -> bool:
        """Returns whether a step has begun and not ended."""
        return self._marks is not None

    def drop(self) -> None:
        """Forgets what was recorded of a loader that turned out not to train."""
        self._held.clear()
        self._marks = None
        self._ahead = NOTHING
        self.n = 0
        self._transforms = TransformSums()

    def measure_headroom(self, loader: dict[str, Any]) -> None:
        """Gives some steps batches that were kept. `loader`: its arguments, see `session.loader_facts`."""
        self._replay = Replay(int(loader.get("num_workers") or 0) * int(loader.get("prefetch_factor") or 2))

    def confirm(self, loader: dict[str, Any], batch: Any = None) -> None:
        """Sends what was held, and from here on every step of `loader` (see `session.loader_facts`)."""
        if loader.get("batch_size") is None:
            loader = {**loader, "batch_size": n_samples(batch) or None}
        self._session.begin(self._device, loader)
        self.confirmed = True
        for row in self._held:
            self._session.step(row)
        self._held.clear()

    # the loader

    def begin_epoch(self) -> None:
        """An iteration has begun: what was fetched in the one before and not used is no part of it."""
        self._ahead = NOTHING

    def ask(self, iterator: Any) -> None:
        """Notes how many batches lie ready in a DataLoader's iterator that is asked for one."""
        self._queue_depth = n_ready(iterator)

    def kept_batch(self) -> Any:
        """Returns the batch that the script gets in place of a new one; None where it gets a new one."""
        return self._replay.batch() if self._replay is not None and self.confirmed else None

    def begin(self, epoch: int, asked_s: float, got_s: float, batch: Any, times: FetchTimes | None) -> None:
        """Begins the step of `batch`, which was asked for and given at these times; `times`: how it was made."""
        samples, made = n_samples(batch), None
        if times is not None:
            dataset_s, transform_s, collate_s, start_s, end_s, worker, transforms = times
            if self.n >= WARMUP_STEPS:
                self._transforms.add(transforms, samples)
                if self.confirmed:
                    self._transforms.tell(self._session.facts, got_s)
            number = math.nan if worker < 0 else float(worker)
            read_s = max(0.0, dataset_s - transform_s)
            made = BatchTimes(read_s, math.nan, transform_s, collate_s, start_s, end_s, number, self._queue_depth)
        marks = self._begin(epoch, asked_s, got_s, samples, made)
        if self._copies is not None:
            again = self._replay is not None and self._replay.replaying
            self._copies.begin(marks, batch, marks.compute_start, again=again)
        if self._replay is not None and self.n < WARMUP_STEPS:
            self._replay.keep(batch)

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
        marks.made = _together(ahead.made, made)
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
            self._record(marks, *(noted or (now_s, self._device.mark())))
        else:
            self._ahead = NOTHING if self._last else Ahead(marks.t_got - marks.t_start, marks.samples, marks.made)
            self._device.release(*{id(m): m for m in (marks.copy_start, marks.copy_end, marks.compute_start)}.values())
        if validated:
            self.resume()
            self.phase("evaluate", self._others_since_s, now_s)

    def _record(self, marks: StepMarks, now_s: float, compute_end: Any) -> None:
        self._ahead = NOTHING
        marks.step, marks.warmup = self.n, self.n < WARMUP_STEPS
        if self._replay is not None and self.confirmed:
            replaying = self._replay.replaying
            marks.step, left_out = self._replay.step(self.n)
            marks.warmup |= left_out
            if replaying is not self._replay.replaying:
                if replaying:
                    self.phase("headroom", self._replaying_since_s, now_s)
                self._replaying_since_s = now_s
        self.n += marks.step >= 0
        marks.t_launched, marks.compute_end = now_s, compute_end
        self._recorder.step(marks)

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
            marks.loss = self._device.keep(loss.detach())

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
        self._recorder.resume()

    def phase(self, name: str, since_s: float, until_s: float) -> None:
        """Notes a stretch of time that belongs to no step."""
        self._session.phase(name, since_s, until_s)

    def pause(self, status: str, error: str) -> None:
        """The run is over for now: sends what the device has passed."""
        if self.confirmed:
            self._tell()
            self._session.pause(status, error)

    def begin_again(self) -> None:
        """The run goes on, if it was over."""
        self._session.begin_again()

    def forget(self) -> None:
        """In a forked process: nothing of it is this one's."""
        self._session.forget()

    def _tell(self) -> None:
        """Tells all that is known by now. The step under way has no end, unless the script has left it, or it is the
        last of an epoch.
        """
        if (self._last or self._said) and self._noted is not None:
            self._others = 0
            self.end(self._noted[0])
        self._marks = None
        self._recorder.resolve()
        self._transforms.tell(self._session.facts)
        if self._replay is not None:
            self._replay.tell(self._session.facts)

    def leave(self) -> None:
        """Sends what the device has passed."""
        if self.confirmed:
            self._tell()
        self.close()

    def close(self) -> None:
        """Sends what there is, and nothing any more."""
        if self._copies is not None:
            self._copies.close()
        self._session.close()

    def _hand_on(self, row: tuple[float, ...]) -> None:
        if self._replay is not None and self._replay.add(row):
            return
        (self._session.step if self.confirmed else self._held.append)(row)


def _together(first: BatchTimes | None, then: BatchTimes | None) -> BatchTimes | None:
    """Returns the stages of batches that one step has waited for, one after another."""
    if first is None or then is None:
        return first or then
    return BatchTimes(
        first.read_s + then.read_s,
        first.decode_s + then.decode_s,
        first.transform_s + then.transform_s,
        first.collate_s + then.collate_s,
        first.start_s,
        then.end_s,
        then.worker,
        then.queue_depth,
    )


def _no_loss() -> float:
    return math.nan


def n_samples(batch: Any) -> int:
    """Returns the length of the first tensor of a batch that has one; 0 where there is none."""
    return next((len(tensor) if tensor.ndim else 1 for tensor in tensors(batch) if tensor.numel()), 0)
