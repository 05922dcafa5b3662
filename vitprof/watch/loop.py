"""The state machine of a watched loop: where each step begins and ends.

                 request            batch              work                  leave
        IDLE ------------> WAITING -------> FETCHED ---------> WORKED --------------------> LEFT
          ^                   ^                |                  |   (vitprof.step only)     |
          |                   +----------------+------------------+---------------------------+
          |                        the next request ends the step; without any work on it, the batch was
          |                        fetched ahead: its wait and samples belong to the next step
          |
          +-- VALIDATING  from any state by a request to another loader without gradients, until the next request
          +-- PAUSED      a notebook's cell or the run is over, until the next request

An iteration that is over leaves FETCHED without a batch (`Step.last`): the script may still work on one that it fetched
ahead. In PLAIN the fast path notes steps that are all WAITING, FETCHED, WORKED and nothing else (`fast_path`).
"""

from __future__ import annotations

import enum
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vitprof.measure.devices import Device, not_kept
from vitprof.measure.devices.events import EventDevice
from vitprof.measure.step_columns import BatchTimes, StepMarks, n_ready
from vitprof.watch.batches import (
    MOST_OPTIMIZERS,
    NOTHING,
    Ahead,
    Copies,
    Step,
    batch_times,
    n_samples,
    together,
)
from vitprof.watch.fetch_times import FetchTimes, made_between
from vitprof.watch.loaders import UNKNOWN, Seen
from vitprof.watch.other_loaders import OtherBatch
from vitprof.watch.steps import Steps

if TYPE_CHECKING:
    from vitprof.watch.watcher import Watcher

ITER_AND_NEXT_S = 0.05
"""The wait for a first batch requested this soon (s) after `iter(loader)` includes that call, which starts workers."""


State = enum.Enum(
    "State", ["IDLE", "WAITING", "FETCHED", "WORKED", "LEFT", "PLAIN", "VALIDATING", "PAUSED"]
)
"""What the loop does: no batch is requested yet, or an epoch begins; a batch is requested; the script has it; it has
worked on it (a backward pass, an optimizer's step, or its own mark); it has left the step that it marks; the fast path
notes steps; it iterates over another loader without gradients; the run is over for now."""
WORK_DONE = (State.WORKED, State.LEFT)


class Request(NamedTuple):
    """A request for a batch that is under way."""

    asked_s: float
    """When it was made, after vitprof's own work for it."""
    own_s: float
    begun_s: float
    """The time to begin the iteration, where this is its first batch."""
    queue_depth: float


class Loop:
    """One loop over the train loader, on the device that the script computes on.

    A step waits for one or several batches, and then works: backward passes, a step of the optimizer. Some frameworks
    fetch a batch ahead, or all that they accumulate gradients over: their waits are part of the step that follows. If
    one is left when no more come, the work on it is a step without samples. Where no work is ever seen, each batch is a
    step. The time outside of steps that the script marks (`enter`, `leave`) is recorded apart.
    """

    def __init__(self, device: Device, watcher: Watcher, instead_of: Loop | None = None) -> None:
        """`instead_of`: a loop on another device that is not known to train; this one goes on with its step."""
        self.device, self.steps = device, Steps(device, watcher)
        self.copies = Copies(device, watcher.guard) if isinstance(device, EventDevice) else None
        self.state = State.IDLE
        self.step: Step | None = None
        self.requested: Request | None = None
        self.epoch = 0
        self.expects_work = True
        """Whether a batch without any work on it counts as fetched ahead; True once any work was seen."""
        self.ahead = NOTHING
        """The batches that the current step waited for before its last one."""
        self._carried: list[OtherBatch] = []
        """Batches of other loaders that the next step works on."""
        self._loader: Seen | None = None
        self._left_s = self._validating_since_s = math.nan
        if instead_of is not None:
            self.epoch, self.state, self.ahead = (
                instead_of.epoch,
                instead_of.state,
                instead_of.ahead,
            )
            self.requested, self.step = instead_of.requested, instead_of.step
            if self.step is not None:
                marks = self.step.marks
                marks.copy_start = marks.copy_end = marks.compute_start = device.mark()
                self.step.end = None
                self.step.work(self.copies, self.steps.others)

    # the loader

    def request(self, iterator: Any, now_s: float, loader: Seen, begun_since_s: float = 0.0) -> Any:
        """Begins to wait, as the step before has ended; returns the kept batch to serve, if any. `begun_since_s`: how
        long others were begun for after `loader`.
        """
        self._loader, begun, loader.begun = loader, loader.begun, UNKNOWN
        if self.state in (State.PAUSED, State.VALIDATING):
            self.resume(now_s)
        depth, replay, begun_s = n_ready(iterator), self.steps.replay, 0.0
        kept = None if replay is None else replay.batch()
        waited_s = begun_since_s + sum(
            other.wait_s for other in self._carried if other.asked_s >= begun.told_s
        )
        if begun.told_s <= now_s < begun.told_s + waited_s + ITER_AND_NEXT_S:
            begun_s, now_s = begun.until_s - begun.since_s, now_s if waited_s else begun.until_s
        self.steps.forward.request()
        asked_s = perf_counter()
        self.requested = Request(asked_s, asked_s - now_s, begun_s, depth)
        self.state = State.WAITING
        return kept

    def receive(
        self, now_s: float, batch: Any, times: FetchTimes | None, *, last: bool = False
    ) -> None:
        """Begins the step of the requested batch, made in `times`; `last`: there is none, the iteration is over."""
        assert self.requested is not None
        samples, made, replay = n_samples(batch), None, self.steps.replay
        asked_s, own_s, begun_s, queue_depth = self.requested
        # without vitprof's own cost, but for what a worker was still making the batch in
        steady = self.steps.n > self.steps.n_before_epoch and not self.steps.warming_up
        since_s = self.steps.forward.received(asked_s - begun_s, ended=steady)
        if times is not None:
            since_s -= made_between(times, asked_s - own_s, asked_s)
            made = batch_times(times, queue_depth)
            self.steps.add_transforms(times[-1], samples)
        self.begin(since_s, now_s, samples, made, last=last)
        if (
            self.step is not None and not last
        ):  # what comes between two epochs is before the first of the next
            self.steps.forward.begin_step(self.step, batch)
        if self.copies is not None:
            self.copies.begin(batch, again=replay is not None and replay.replaying)
        if replay is not None and self.steps.warming_up and not last:
            replay.keep(batch)

    def begin(
        self,
        asked_s: float,
        got_s: float,
        samples: int,
        made: BatchTimes | None,
        *,
        last: bool = False,
    ) -> StepMarks:
        """Begins a step."""
        carried, self._carried = self._carried, []
        before = self.steps.others.before(self.ahead, carried)
        marks = StepMarks()
        marks.epoch, marks.samples = self.epoch, samples + before.samples
        marks.t_start, marks.t_got = asked_s - before.wait_s, got_s
        marks.decoded = marks.prepared = None
        marks.backward_start = marks.optimizer_start = None
        marks.loss = not_kept
        marks.made = together(before.made, made)
        marks.outside_s = math.nan
        marks.copy_start = marks.copy_end = marks.compute_start = self.device.mark()
        self.step, self.state, self.requested = Step(marks, carried, last=last), State.FETCHED, None
        return marks

    def request_other(self, now_s: float, loader: Seen | None) -> None:
        """Notes that a batch of another loader is requested: for this step too, or the next; None: to validate."""
        step = self.step
        ended = (
            step is not None and step.end is not None and (step.last or self.state is State.LEFT)
        )
        if loader is None:
            if self.state not in (State.VALIDATING, State.PAUSED, State.WAITING):
                self.end(now_s)
                self.state, self._validating_since_s = State.VALIDATING, now_s
            return
        if step is not None and not ended and not self.steps.others.batches:
            step.note_end(self.device, now_s)
        self.steps.others.request(now_s, loader)

    def begin_epoch(self, now_s: float) -> None:
        """Begins an epoch: batches left of the previous iteration are no part of it, the wait for its end is."""
        self.end(now_s)
        if self.state is State.VALIDATING:
            self.resume(now_s)
        if self.ahead.samples:
            self.ahead = NOTHING
        self.epoch += self.steps.n > self.steps.n_before_epoch
        self.steps.n_before_epoch = self.steps.n
        self.steps.others.last_after_update = self.steps.n - 1

    def change_loader(self, now_s: float, *, expects_work: bool) -> None:
        """Goes on with another loader: in the next epoch if the steps so far are training; else drops them."""
        if self.steps.confirmed:
            self.end(now_s)
            if self.state in (State.PAUSED, State.VALIDATING):
                self.resume(now_s)
            self.epoch += self.steps.n > self.steps.n_before_epoch
            self.steps.n_before_epoch = self.steps.n
        else:
            self.steps.drop()
            self._carried = []
            self.step, self.ahead, self.epoch = None, NOTHING, 0
            self.resume(now_s)
        self.expects_work, self.state = expects_work, State.IDLE

    # the work

    def backward(self, differentiated: Any) -> bool:
        """Notes the beginning of a backward pass, from one or several losses; returns whether it is part of a step."""
        step = self.step
        if step is None or not _follow(self.device):
            return False
        self.expects_work = True
        if self.state is State.FETCHED:
            self.state = State.WORKED
            self.steps.forward.end(step)
        step.work(self.copies, self.steps.others)
        if isinstance(differentiated, (list, tuple)):
            differentiated = differentiated[0] if len(differentiated) == 1 else None
        result, loss = step.scaled
        step.scaled = (None, None)
        if differentiated is not result or loss is None:
            loss = differentiated
        validates = 0 <= step.updated < len(step.others)
        if (
            type(loss) is Tensor
            and loss.numel() == 1
            and loss.device == self.device.torch_device
            and not validates
        ):
            step.marks.loss = self.device.keep(loss, self.steps.n)
        return True

    def optimizer_stepped(self, now_s: float) -> None:
        """Notes a step of an optimizer: it is work, too, unless it comes after the last batch, which was counted."""
        step = self.step
        if step is None or not _follow(self.device):
            return
        step.updated = len(step.others)
        step.n_stepped += 1
        self.steps.forward.stepped(now_s)
        if self.copies is not None:
            self.copies.work()
            step.note_stepped(self.device, now_s)
        elif self.device.immediate:
            step.stepped = (now_s, now_s)
        if not step.last:
            self.expects_work = True
            if self.state is State.FETCHED:
                self.state = State.WORKED
        elif self.state is State.WORKED:  # no request for a batch will end this step
            step.note_end(self.device, now_s)

    def enter(self, now_s: float) -> None:
        """Begins a step that the script marks. If a batch has several, the first one begins the work."""
        if self.step is None or self.state is State.LEFT or not _follow(self.device):
            return
        marks = self.step.marks
        since_s = self._left_s if math.isfinite(self._left_s) else marks.t_start
        marks.outside_s = max(0.0, now_s - since_s - (marks.t_got - marks.t_start))
        given = marks.compute_start
        marks.compute_start = self.device.mark()
        if given is not marks.copy_start:
            self.device.release(given)

    def leave(self, now_s: float) -> None:
        """Ends a step that the script marks. If a batch has several, the last one ends the work."""
        if self.step is None:
            return
        self.expects_work, self.state = True, State.LEFT
        self.step.work(self.copies, self.steps.others)
        self._left_s = now_s
        self.step.note_end(self.device, now_s)

    # ends

    def end(self, now_s: float) -> None:
        """Ends the current step, if there is one; batches without work on them belong to the next one."""
        step, state, others = self.step, self.state, self.steps.others
        if step is None:
            _keep_others(self, now_s, others.validated_since_s(last=False))
            return
        self.step, self.state = None, State.IDLE
        marks, noted = step.marks, step.end
        validated_since_s = others.validated_since_s(last=step.last)
        counts = state in WORK_DONE or not (self.expects_work or step.last)
        if validation := others.validation(self.steps.n, step.others, step.updated, last=step.last):
            validated_since_s = validation[0].asked_s
            counts &= step.updated >= 0 or not step.last
            del step.others[-len(validation) :]
            if noted is None or state is not State.LEFT:
                self.device.release(*(noted or ())[1:])
                noted = validated_since_s, validation[0].asked
            self.device.release(
                *(
                    other.asked
                    for other in validation
                    if noted is None or other.asked is not noted[1]
                )
            )
        before_copy = None if self.copies is None else self.copies.end(marks if counts else None)
        if counts:
            if noted is not None and not (
                validation or others.batches or step.last or state is State.LEFT
            ):
                self.device.release(noted[1])
                noted = None
            if noted is None:
                noted = before_copy
            elif before_copy is not None:
                self.device.release(before_copy[1])
            if state is not State.LEFT:
                self._left_s = math.nan
            self.ahead = NOTHING
            if step.carried or step.others:
                self.steps.count_loaders(self._loader, step)
            others.count_end(self.steps.n, validated=math.isfinite(validated_since_s))
            if (
                noted is not None and step.stepped is not None
            ):  # where the step ended is known otherwise
                self.device.release(step.stepped[1])
                step.stepped = None
            noted = noted or (now_s, now_s if self.device.immediate else self.device.mark())
            self.steps.step(step, *noted, () if self.copies is None else self.copies.take_sides())
        else:
            self.ahead = Ahead(marks.t_got - marks.t_start, marks.samples, marks.made)
            self.device.release(
                *{id(m): m for m in (marks.copy_start, marks.compute_start)}.values()
            )
        _keep_others(self, now_s, validated_since_s)

    def resume(self, now_s: float) -> None:
        """Makes the next step's gap count from here; ends validation or a pause, if there is one."""
        self._left_s = math.nan
        self.steps.resume()
        if not self.ahead.samples:
            self.ahead = NOTHING
        if self.state is State.PAUSED:
            self.steps.begin_again()
        elif self.state is State.VALIDATING:
            self.steps.phase("evaluate", self._validating_since_s, now_s)
        self.state = State.IDLE

    def pause(self) -> None:
        """Sends all steps of training, the last one as an optimizer's step ended it; the next request goes on."""
        step = self.step
        if self.steps.confirmed:
            if step is not None and not self.steps.n and step.n_stepped > MOST_OPTIMIZERS:
                self.steps.facts({"updates_on_one_batch": step.n_stepped})
            if (
                step is not None
                and self.state is State.WORKED
                and step.stepped is not None
                and not step.last
            ):
                self.device.release(*(step.end or ())[1:])
                step.end, step.stepped, self.state = step.stepped, None, State.LEFT
            if (
                step is not None
                and step.end is not None
                and (step.last or self.state is State.LEFT)
            ):
                self.steps.others.drop()
                self.end(step.end[0])
            self.steps.flush()
        self.step, self.state, self.requested = None, State.PAUSED, None

    def close(self) -> None:
        if self.copies is not None:
            self.copies.close()
        self.steps.close()


def _keep_others(loop: Loop, now_s: float, validated_since_s: float) -> None:
    others = loop.steps.others
    if math.isfinite(validated_since_s):
        loop.resume(now_s)
        loop.steps.phase("evaluate", validated_since_s, now_s)
        others.drop()
    loop._carried += others.take()


def _follow(device: Device) -> bool:
    """Marks are in the stream of the work from here on. Returns False where a graph is captured: that is no work, and a
    mark or a copy would become part of it.
    """
    if isinstance(device, EventDevice):
        if device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        device.follow()
    return True
