"""When a device that works on its own copied, computed and idled in each step: from the steps of the
host, and the marks that the device passed.

The host launches work and goes on; the device does it later. So the steps are those of the host, and
their times on the device are those of marks that were set at the same places. `device_step` has a rule
for each mark; here they become figures, once the device has passed them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.measure.step_columns import Columns
from vitprof.watch.core.device_marks import Mark, MarksOfThread, MarkTable
from vitprof.watch.core.device_step import DeviceStep, Previous, was_done
from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Fetch
from vitprof.watch.events import NAN, Event, MarkedPoint

SIDE_FRAC = 0.03
"""The share of a step for which other streams may work while that of training is idle."""
MOST_WAITING = 4000
"""Steps that may wait for the device. No script is so far ahead of it: a mark that it has not passed by
then is lost."""


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """A step's times, most by the names of `measure.step_columns`, in seconds on the host's clock.

    NaN where a mark is missing: a graph was captured meanwhile, or marks had not begun.
    """

    t_start: float
    t_got: float
    copy_start: float
    copy_end: float
    compute_start: float
    compute_end: float
    t_launched: float
    previous_end: float
    other_wait_s: float
    other_exposed_s: float
    outside_s: float
    loss: float
    backward_start: float
    """When it came to the only backward pass; NaN in steps where that was not marked."""
    optimizer_start: float
    """The same of the only optimizer's step."""
    forward_end: float
    """When the device had done the forward pass, as it came to the first backward pass."""
    stepped: float
    """When it had done the last step of an optimizer, where that was the last work."""
    free_s: float
    """When it had done all that was launched before the batch came."""
    sent_s: float
    """Seconds in which it sent to other ranks, or waited for them, in the forward pass."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A step as far as the device has come with it."""

    figures: DeviceFigures
    is_reached: bool
    """Whether the device has passed all marks that they are made of."""
    marked_until_s: float
    """When its end was marked (s)."""
    leaves: Previous


def passed(step: Step, marks: MarksOfThread, previous: Previous) -> Passed:
    """Returns what the device did of a step, by the marks that it has passed so far."""
    own = DeviceStep(step, marks, previous)
    copy = own.copy()
    received = own.received()
    begin = own.begin(copy)
    end = own.end()
    stepped = own.stepped()
    backward = own.backward()
    gap_since = own.gap_since()
    differentiating, stepping = own.parts()
    sent = own.sent()
    requests = [own.request(fetch) for fetch in own.later]

    start_s = _reached_s(begin) if step.wait_is_known else NAN
    end_s = _reached_s(end.mark)
    launched_s = NAN if end.mark is None else end.mark.at_s
    left_s = step.end_s if own.leaves_a_marked_step() else NAN
    if end.is_at_request and stepped is not None and was_done(end_s, launched_s, start_s):
        # What the script did since then is no work of the step on the device.
        launched_s = stepped.at_s
        left_s = max(stepped.reached_s, stepped.at_s)
        end_s = max(left_s, start_s)
    if math.isnan(end_s) or None in requests:
        # `derive` takes a step without an end for one that has no compute, and a wait that is not known
        # to be exposed for a hidden one.
        start_s = NAN
    requested_s = own.requested_s()
    waited_s = sum(fetch.wait_s for fetch in own.leading)
    losses = [mark.loss for mark in own.losses() if not math.isnan(mark.loss)]
    figures = DeviceFigures(
        t_start=requested_s,
        t_got=own.received_s(),
        copy_start=_reached_s(received if copy is None else copy.begin),
        copy_end=_reached_s(received if copy is None else copy.end),
        compute_start=start_s,
        compute_end=end_s,
        t_launched=launched_s,
        previous_end=_reached_s(gap_since) if step.after_evaluation else previous.end_s,
        other_wait_s=sum(fetch.wait_s for fetch in own.later),
        other_exposed_s=sum(map(exposed_s, own.later, requests)),
        outside_s=outside_s(own.entered_s(), requested_s, waited_s, step, previous),
        loss=losses[-1] if losses else NAN,
        backward_start=_reached_s(differentiating),
        optimizer_start=_reached_s(stepping),
        forward_end=_reached_s(backward),
        stepped=_reached_s(stepped),
        free_s=_reached_s(received),
        sent_s=sum(end.reached_s - begin.reached_s for begin, end in sent),
    )
    copied = [] if copy is None else [copy.begin, copy.end]
    waits = [mark for pair in sent for mark in pair]
    needed = [received, begin, stepping, end.mark, stepped, backward, gap_since]
    needed += [*requests, *copied, *waits, *own.losses()]
    return Passed(
        figures=figures,
        is_reached=all(mark is None or mark.is_reached for mark in needed),
        marked_until_s=own.last_work_s if end.mark is None else end.mark.at_s,
        leaves=Previous(own.last_work_s, step.end_s, end_s, left_s),
    )


def exposed_s(fetch: Fetch, requested: Mark | None) -> float:
    """Returns for how long of a wait the device had no work left (s): since it came to the request."""
    idle_since_s = max(fetch.since_s, _reached_s(requested))
    return min(fetch.wait_s, max(0.0, fetch.received_s - idle_since_s))


def outside_s(
    entered_s: float, requested_s: float, waited_s: float, step: Step, previous: Previous
) -> float:
    """Returns for how long the loop did something else before a step (s), its waits aside: until the script
    entered the step that it marks, or until it requested the batch. NaN where it is not known when the
    step before was left."""
    left_s = NAN if step.after_evaluation else previous.left_s
    if not math.isnan(entered_s):
        since_s = requested_s if math.isnan(left_s) else left_s
        return max(0.0, entered_s - since_s - waited_s)
    return requested_s - left_s if left_s < requested_s else NAN


def _reached_s(mark: Mark | None) -> float:
    return NAN if mark is None else mark.reached_s


class DeviceSteps:
    """Gives out each settled step once the device has passed all of its marks, in order."""

    def __init__(self, warmup_steps: int) -> None:
        """`warmup_steps`: so many at the beginning count in no fact."""
        self.marks = MarkTable()
        self._waiting: list[Step] = []
        self._previous = Previous()
        self._other_streams = OtherStreams()
        self._n_before_steady = warmup_steps
        self.n_side_stream_steps = 0
        """Steps before whose compute another stream worked while that of training was idle."""

    def add(self, events: Sequence[Event], steps: Sequence[Step]) -> None:
        """Adds events that have arrived, and the steps that are settled by now."""
        self.marks.add_events(events)
        self._waiting += steps

    def take(
        self, thread: int, *, finished: bool = False
    ) -> tuple[list[Step], list[DeviceFigures | None]]:
        """Returns the steps that the device has passed and that were not given out, and their figures.

        `thread`: the one that trains. `finished`: nothing more will come, so nothing is waited for.
        Where no mark was ever set, all are given out, with None: the device works at once, as a CPU, or
        is not timed.
        """
        if not self.marks:
            steps = self._waiting
            self._waiting = []
            return steps, [None] * len(steps)
        marks = self.marks.of_thread(thread)
        given_out = list[Step]()
        figures = list[DeviceFigures | None]()
        for step in self._waiting:
            result = passed(step, marks, self._previous)
            n_waiting = len(self._waiting) - len(given_out)
            if not (finished or result.is_reached or n_waiting > MOST_WAITING):
                break
            given_out.append(step)
            figures.append(result.figures)
            self._count(marks, result)
            self._previous = result.leaves
        del self._waiting[: len(given_out)]
        marks.forget(self._previous.worked_s)
        return given_out, figures

    def facts(self) -> dict[str, int]:
        """Returns the facts of the steps that were given out, by their names in a recording."""
        n = self.n_side_stream_steps
        return {"side_stream_steps": n} if n else {}

    def _count(self, marks: MarksOfThread, result: Passed) -> None:
        aside = self._other_streams.worked_in_gap(marks, self.marks.copied_in, result)
        if self._n_before_steady:
            self._n_before_steady -= 1
        elif aside:
            self.n_side_stream_steps += 1


class OtherStreams:
    """The work that the thread gave to other streams than that of training, from where it left each to
    where the device was done with that."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        """Of work that may reach into the gap before the next step."""
        self._marked_until_s = -math.inf

    def worked_in_gap(self, marks: MarksOfThread, copied_in: set[float], result: Passed) -> bool:
        """Returns whether they worked for a part of the gap before a step that matters.

        `copied_in`: the streams in which batches are copied, which is no work.
        """
        between = marks.between(self._marked_until_s, result.marked_until_s)
        self._marks += [
            mark
            for mark in between
            if mark.place is MarkedPoint.ASIDE and mark.stream not in copied_in
        ]
        self._marked_until_s = result.marked_until_s
        step = result.figures
        aside_s = 0.0
        later = list[Mark]()
        for mark in self._marks:
            until_s = mark.reached_s if mark.is_reached else math.inf
            since_s = max(mark.at_s, step.previous_end)
            aside_s += max(0.0, min(until_s, step.compute_start) - since_s)
            if until_s > step.compute_end:
                later.append(mark)
        self._marks = later
        return aside_s > SIDE_FRAC * (step.compute_end - step.previous_end)


def with_device(marks: Columns, figures: Sequence[DeviceFigures | None]) -> Columns:
    """Returns the marks of steps, for `derive`, with the device's own in place of the host's.

    `marks`: as `columns.marks_of` returns them. `figures`: of each step; None where those of the host are
    right, as for a CPU.
    """
    unknown = np.full(len(figures), np.nan)
    replaced = dict(marks)
    for field in dataclasses.fields(DeviceFigures):
        name = field.name
        of_host = marks.get(name, unknown)
        own = [NAN if each is None else getattr(each, name) for each in figures]
        is_own = np.array([each is not None for each in figures], dtype=bool)
        if name == "loss":
            is_own &= ~np.isnan(own)
        replaced[name] = np.where(is_own, np.array(own, dtype=np.float64), of_host)
    return replaced
