"""One step on a device that works on its own: which of the marks tell when it copied, began and ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from vitprof.recording.columns import LAG_FRAC, LEAST_LAG_S
from vitprof.watch.core.device_marks import Mark, MarksOfThread
from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Fetch, Work
from vitprof.watch.events import NAN, Kind, MarkedPoint

ONE_AFTER_ANOTHER_S = 200e-6
"""A copy that the host begins this soon (s) after the one before is part of it; labels moved after the
forward pass are not."""
WITHOUT_WORK_S = 10e-6
"""The same on the device, for a host that was held up between the two: no forward pass is this short."""
PLACES = {
    Kind.BACKWARD: MarkedPoint.BACKWARD,
    Kind.STEPPED: MarkedPoint.STEPPED,
    Kind.LEFT: MarkedPoint.LEFT,
}
"""What the thread did with the batches that it had, and where marks of that are."""
NEXT_STEP = (MarkedPoint.RECEIVED, MarkedPoint.BACKWARD, MarkedPoint.STEPPED, MarkedPoint.ENTERED)
"""Places where a step that has worked has ended."""


@dataclass(frozen=True, slots=True)
class Previous:
    """What a step leaves to the one after it."""

    worked_s: float = -math.inf
    """When the host last worked for it (s)."""
    host_end_s: float = NAN
    """When it ended on the host."""
    end_s: float = NAN
    """When the device was done with it."""
    left_s: float = NAN
    """Since when the script does something else: it has left the step that it marks, or the device has
    had nothing to do since the optimizer stepped. NaN where neither is so."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The copies of a step's batch, one right after the other."""

    begin: Mark
    end: Mark
    streams: frozenset[float]


@dataclass(frozen=True, slots=True)
class End:
    """Where the work of a step ends."""

    mark: Mark | None
    """None where that is not known."""
    is_at_request: bool = False
    """Whether that is the request for the next batch: what the script did since the optimizer stepped is
    then the step's work, or nothing of it."""


class DeviceStep:
    """A step of the host, with the marks that were set in it."""

    def __init__(self, step: Step, marks: MarksOfThread, previous: Previous) -> None:
        self._step = step
        self._marks = marks
        self._previous = previous
        self.works = [work for work in step.work if work.kind in PLACES]
        self.first_work_s = self.works[0].at_s if self.works else step.end_s
        self.last_work_s = self.works[-1].at_s if self.works else previous.worked_s
        used_s = self._used_since_s()
        self.leading = [fetch for fetch in step.fetches if fetch.requested_s < used_s]
        """The batches that it waited for before it did anything with one."""
        self.later = [fetch for fetch in step.fetches if fetch.requested_s >= used_s]
        """Those that it requested after that, as of several loaders: the device may work on the first
        one meanwhile."""

    # the batch

    def _used_since_s(self) -> float:
        """Returns when it first did something with a batch that it had waited for: it copied or
        differentiated it."""
        if not self._step.fetches:
            return self.first_work_s
        received_s = self._step.fetches[0].received_s
        copied = self._marks.first(MarkedPoint.COPYING, received_s, self.first_work_s)
        return self.first_work_s if copied is None else copied.at_s

    def requested_s(self) -> float:
        """Returns when it requested its first batches, as if all that it waited for before its work had been
        requested one right after the other."""
        if not self.leading:
            before_s = self._previous.host_end_s
            return self.first_work_s if math.isnan(before_s) else before_s
        return self.leading[-1].received_s - sum(fetch.wait_s for fetch in self.leading)

    def received_s(self) -> float:
        """Returns when it had them; NaN where not all that it waited for was seen."""
        if not self._step.wait_is_known:
            return NAN
        return self.leading[-1].received_s if self.leading else self.requested_s()

    def received(self) -> Mark | None:
        """Returns the mark where its last batch before the work came. Of the very first step there may be
        none, as marks begin with its work; it then begins with that."""
        if not self.leading:
            return None
        since_s = self.leading[-1].received_s
        mark = self._marks.first(MarkedPoint.RECEIVED, since_s, self.first_work_s)
        if mark is None and math.isinf(self._previous.worked_s):
            return next(self._marks.between(since_s, self._step.end_s), None)
        return mark

    def copy(self) -> Copy | None:
        """Returns the copy of its batch: the first one since the work of the step before, of whose batch
        no work is left to do. Frameworks that fetch ahead copy the next batch before they request the
        one after it. What an evaluation copied is no batch of this step."""
        since_s = self._previous.worked_s
        if self._step.after_evaluation and self._step.fetches:
            since_s = self._step.fetches[0].since_s
        copy: Copy | None = None
        for begin, end in self._copies(since_s):
            if copy is None:
                copy = Copy(begin, end, frozenset({begin.stream}))
            elif follows(begin, copy.end):
                copy = Copy(copy.begin, end, copy.streams | {begin.stream})
            else:
                break
        return copy

    def _copies(self, since_s: float) -> Iterator[tuple[Mark, Mark]]:
        """Yields the beginning and the end of each copy to a device before the first work."""
        return self._pairs(MarkedPoint.COPYING, MarkedPoint.COPIED, since_s)

    def _pairs(
        self, begins: MarkedPoint, ends: MarkedPoint, since_s: float
    ) -> Iterator[tuple[Mark, Mark]]:
        """Yields the marks of one place with those of the other that follow, before the first work."""
        begin: Mark | None = None
        for mark in self._marks.between(since_s, self.first_work_s):
            if mark.place is begins:
                begin = mark
            elif mark.place is ends and begin is not None:
                yield begin, mark
                begin = None

    def begin(self, copy: Copy | None) -> Mark | None:
        """Returns the mark where its compute begins: where the batch came, or the script entered the step
        that it marks; but where the copy ends, if that comes later and the work waits for it, as both
        are in one stream."""
        begin = self.received()
        entered = [work for work in self._step.work if work.kind is Kind.ENTERED]
        for work in entered[:1]:
            marked = self._marks.first(MarkedPoint.ENTERED, work.at_s, self.first_work_s)
            begin = marked or begin
        if copy is None or begin is None or self.stream() not in copy.streams:
            return begin
        return copy.end if copy.end.at_s >= begin.at_s else begin

    # the work

    def stream(self) -> float:
        """Returns the stream that it works in; NaN where that is not known."""
        for work in self.works:
            mark = self.mark_of(work)
            if mark is not None:
                return mark.stream
        return NAN

    def mark_of(self, work: Work) -> Mark | None:
        """Returns the mark of a backward pass, a step of an optimizer, or where the script left; None where
        none was set."""
        following = (other.at_s for other in self.works if other.at_s > work.at_s)
        until_s = next(following, math.inf)
        for mark in self._marks.between(work.at_s, until_s):
            if mark.place is PLACES[work.kind]:
                return mark
            if mark.place in (MarkedPoint.REQUESTED, *NEXT_STEP):
                return None
        return None

    def backward(self) -> Mark | None:
        """Returns the mark at its first backward pass: the forward pass is before it."""
        passes = [work for work in self.works if work.kind is Kind.BACKWARD]
        return self.mark_of(passes[0]) if passes else None

    def parts(self) -> tuple[Mark | None, Mark | None]:
        """Returns the marks where its backward pass begins, and where its optimizer begins to step: after
        that. None with several of either, as their parts are mixed, and where that was not marked."""
        passes = [work for work in self.works if work.kind is Kind.BACKWARD]
        steps = [work for work in self.works if work.kind is Kind.STEPPED]
        if len(passes) != 1 or len(steps) != 1:
            return None, None
        begun: Mark | None = None
        for mark in self._marks.between(passes[0].at_s, steps[0].at_s):
            if mark.place is MarkedPoint.STEPPING:
                begun = mark
        return (None, None) if begun is None else (self.backward(), begun)

    def stepped(self) -> Mark | None:
        """Returns the mark at an optimizer's step that was its last work; None where it was not, or where
        so many optimizers step that not all are marked."""
        if not self.works or self.works[-1].kind is not Kind.STEPPED:
            return None
        return self.mark_of(self.works[-1])

    def sent(self) -> list[tuple[Mark, Mark]]:
        """Returns the marks around what it sent to other ranks in the forward pass."""
        if not self.leading:
            return []
        return list(
            self._pairs(MarkedPoint.AWAITING, MarkedPoint.AWAITED, self.leading[-1].received_s)
        )

    def losses(self) -> list[Mark]:
        """Returns the marks with a loss before them: those of its backward passes."""
        marks = (self.mark_of(work) for work in self.works if work.kind is Kind.BACKWARD)
        return [mark for mark in marks if mark is not None]

    def end(self) -> End:
        """Returns where its work ends: where the script left the step that it marks; else where, after its
        last work, it copied the next batch or requested one. Of the script's last step nothing of that
        is seen: it ends with the optimizer's step."""
        leavings = [work for work in self.works if work.kind is Kind.LEFT]
        if leavings:
            return End(self.mark_of(leavings[-1]))
        if not self.works:
            return End(None)
        own = self.mark_of(self.works[-1])
        stream = self.stream()
        for mark in self._marks.since(self.last_work_s):
            if mark is own:
                continue
            if mark.place is MarkedPoint.REQUESTED:
                return End(mark, is_at_request=True)
            if mark.place is MarkedPoint.BEFORE_COPY or is_copy_in(mark, stream):
                return End(mark)
            if mark.place in NEXT_STEP:
                break
        return End(self.stepped())

    # before and after it

    def gap_since(self) -> Mark | None:
        """Returns the mark from which the gap before it counts, where an evaluation was before it: its own
        first request, or the beginning of the iteration for that."""
        if not self._step.after_evaluation or not self._step.fetches:
            return None
        requested: Mark | None = None
        for mark in self._marks.until(self._step.fetches[0].requested_s):
            if mark.place is MarkedPoint.RECEIVED:
                break
            if mark.place is MarkedPoint.REQUESTED:
                requested = mark
        return requested

    def request(self, fetch: Fetch) -> Mark | None:
        """Returns the mark at the request for one of its later batches."""
        mark = self._marks.last(MarkedPoint.REQUESTED, fetch.requested_s)
        before_s = self.leading[-1].received_s if self.leading else self.first_work_s
        return mark if mark is not None and mark.at_s >= before_s else None

    def leaves_a_marked_step(self) -> bool:
        """Returns whether it ends where the script leaves the step that it marks."""
        return any(work.kind is Kind.LEFT for work in self.works)

    def entered_s(self) -> float:
        """Returns when the script entered the step that it marks; NaN where it does not mark any."""
        entered = [work.at_s for work in self._step.work if work.kind is Kind.ENTERED]
        return entered[0] if entered and entered[0] <= self.first_work_s else NAN


def follows(begin: Mark, end: Mark) -> bool:
    """Returns whether a copy begins right after the one before has ended, on the host or on the device."""
    if begin.at_s - end.at_s <= ONE_AFTER_ANOTHER_S:
        return True
    return begin.stream == end.stream and begin.reached_s - end.reached_s <= WITHOUT_WORK_S


def is_copy_in(mark: Mark, stream: float) -> bool:
    return mark.place is MarkedPoint.COPYING and mark.stream == stream


def was_done(end_s: float, launched_s: float, start_s: float) -> bool:
    """Returns whether the device had no work left as the next batch was requested: it came to that mark
    as soon as the host had set it."""
    lag_s = end_s - launched_s
    return lag_s < max(LEAST_LAG_S, LAG_FRAC * (end_s - start_s))
