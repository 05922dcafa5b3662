"""What is this rank's own of its steps, where others train, too: its work between two of them and its
forward pass, without waits for other ranks.

A collective that is not waited for where it is seen hides such a wait somewhere: the time in which one
was begun is then not known. DistributedDataParallel's own are in the backward pass, and everything up
to that is compared between ranks.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.measure.step_columns import Columns
from vitprof.watch.core.device_columns import DeviceFigures
from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Fetch
from vitprof.watch.events import NAN, Event, Kind


@dataclass(frozen=True, slots=True)
class RankStepFigures:
    """A step's figures, by the names of `measure.step_columns.BatchTimes`; NaN where not known."""

    batch_values: float
    """Numbers in the largest tensor of its last batch."""
    between_s: float
    collectives: float
    awaited_s: float
    forward_s: float
    in_loader_s: float
    """Seconds of its waits for batches in which it waited for other ranks."""


class ThreadCollectives:
    """What one thread did with other ranks: how many collectives it had begun, and its waits."""

    def __init__(self) -> None:
        self._counted_at_s: list[float] = []
        self._counts: list[float] = []
        self._waited_until_s: list[float] = []
        self._waits: list[Event] = []

    def add(self, event: Event) -> None:
        if event.kind is Kind.COUNTED:
            self._counted_at_s.append(event.at_s)
            self._counts.append(event.value("collectives"))
        elif event.kind is Kind.AWAITED:
            self._waited_until_s.append(event.at_s)
            self._waits.append(event)

    def count(self, at_s: float) -> float:
        """Returns how many collectives were begun by an event of that time; NaN where not known."""
        i = bisect.bisect_right(self._counted_at_s, at_s)
        return self._counts[i - 1] if i else NAN

    def begun(self, since_s: float, until_s: float) -> float:
        """Returns how many were begun between two events."""
        return self.count(until_s) - self.count(since_s)

    def waits(self, since_s: float, until_s: float) -> Sequence[Event]:
        """Returns the waits that ended between two events."""
        first = bisect.bisect_right(self._waited_until_s, since_s)
        last = bisect.bisect_right(self._waited_until_s, until_s)
        return self._waits[first:last]

    def waited_s(self, since_s: float, until_s: float) -> float:
        """Returns the seconds of these waits."""
        return sum(wait.at_s - wait.value("since_s") for wait in self.waits(since_s, until_s))

    def ended(self, since_s: float, until_s: float) -> float:
        """Returns how many collectives these waits ended."""
        return sum(wait.value("collectives") for wait in self.waits(since_s, until_s))

    def forget(self, before_s: float) -> None:
        """Drops what no later event is compared with."""
        first = max(0, bisect.bisect_right(self._counted_at_s, before_s) - 1)
        del self._counted_at_s[:first]
        del self._counts[:first]
        first = bisect.bisect_right(self._waited_until_s, before_s)
        del self._waited_until_s[:first]
        del self._waits[:first]


class RankSteps:
    """Makes the figures of steps as they are given out, in order."""

    def __init__(self, warmup_steps: int) -> None:
        self._threads: dict[int, ThreadCollectives] = {}
        self._n = 0
        self._warmup_steps = warmup_steps
        self._before: Step | None = None
        self.n_loader_waits = 0
        """Requests for a batch in which there was a collective, or a wait for other ranks."""
        self.n_unknown_waits = 0
        """Those of them whose wait for data is not known by that."""

    def add(self, events: Iterable[Event]) -> None:
        """Adds events that have arrived."""
        for event in events:
            if event.kind in (Kind.COUNTED, Kind.AWAITED):
                self._threads.setdefault(event.thread, ThreadCollectives()).add(event)

    def take(
        self, thread: int, steps: Sequence[Step], device: Sequence[DeviceFigures | None]
    ) -> list[RankStepFigures | None]:
        """Returns the figures of the next steps of the thread that trains; None of those before any other
        rank is seen to train. `device`: what an asynchronous device did of each."""
        figures = list[RankStepFigures | None]()
        for step, on_device in zip(steps, device, strict=True):
            ranks = self._threads.get(thread)
            if ranks is None:
                figures.append(None)
            else:
                figures.append(self._figures(ranks, step, on_device))
                ranks.forget(received_s(self._before) if self._before else -math.inf)
            self._before = step
            self._n += 1
        return figures

    def facts(self) -> dict[str, int]:
        """Returns the facts of the steps so far, by their names in a recording."""
        counts = {
            "loader_waits_for_ranks": self.n_loader_waits,
            "unknown_loader_waits": self.n_unknown_waits,
        }
        return counts if any(counts.values()) else {}

    def _figures(
        self, ranks: ThreadCollectives, step: Step, on_device: DeviceFigures | None
    ) -> RankStepFigures:
        self._count_loader_waits(ranks, step, at_once=on_device is None)
        own = figures_of(ranks, step, self._before, at_once=on_device is None)
        return own if on_device is None else with_device_times(own, on_device)

    def _count_loader_waits(self, ranks: ThreadCollectives, step: Step, *, at_once: bool) -> None:
        before = self._before
        same_epoch = before is not None and before.epoch == step.epoch
        is_steady = same_epoch and self._n >= self._warmup_steps
        for fetch in step.fetches:
            unseen = unseen_collectives(ranks, fetch, at_once=at_once)
            waited = bool(ranks.waits(fetch.requested_s, fetch.received_s))
            if unseen > 0 or waited:
                self.n_loader_waits += 1
            # Where the device works on its own, what it did while the host waited for others is not known.
            if unseen > 0 or (is_steady and waited and not at_once):
                self.n_unknown_waits += 1


def unseen_collectives(ranks: ThreadCollectives, fetch: Fetch, *, at_once: bool) -> float:
    """Returns how many collectives were begun in the wait for a batch whose own wait was not seen.

    Where the device works on its own, the host's wait for one is none for the other ranks: the device
    waits for these.
    """
    begun = ranks.begun(fetch.requested_s, fetch.received_s)
    if not at_once:
        return begun
    return begun - ranks.ended(fetch.requested_s, fetch.received_s)


def received_s(step: Step) -> float:
    """Returns when a step had its last batch; where it asked for none, when its work began."""
    return step.received_s if step.fetches else step.work[0].at_s


def figures_of(
    ranks: ThreadCollectives, step: Step, before: Step | None, *, at_once: bool
) -> RankStepFigures:
    """Returns the host's figures of a step. `at_once`: the device works at once."""
    got_s = received_s(step)
    since_s = NAN if before is None else received_s(before)
    return RankStepFigures(
        batch_values=step.fetches[-1].values if step.fetches else NAN,
        between_s=between_s(ranks, step, before, at_once=at_once),
        collectives=NAN if before is None else ranks.begun(since_s, got_s),
        awaited_s=ranks.waited_s(-math.inf if before is None else since_s, got_s),
        forward_s=forward_s(ranks, step, at_once=at_once),
        in_loader_s=sum(ranks.waited_s(f.requested_s, f.received_s) for f in step.fetches),
    )


def between_s(ranks: ThreadCollectives, step: Step, before: Step | None, *, at_once: bool) -> float:
    """Returns how long the rank worked on its own from the last step of the optimizer to its next request;
    NaN with a collective in it, and without such a step."""
    stepped = [] if before is None else [w.at_s for w in before.work if w.kind is Kind.STEPPED]
    if not stepped or not step.fetches:
        return NAN
    since_s = stepped[-1]
    n_before = step.n_of_last_epoch
    requested_s = step.fetches[n_before].requested_s
    known = ranks.begun(since_s, requested_s) == 0
    if not at_once:
        # The device may have waited for others where the host did not.
        known &= not ranks.waits(since_s, step.received_s)
    if not known:
        return NAN
    # The wait for the end of the last iteration is none of its work, whatever that was for.
    in_loader_s = sum(
        ranks.waited_s(fetch.requested_s, fetch.received_s) for fetch in step.fetches[:n_before]
    )
    waited_s = ranks.waited_s(since_s, requested_s) - in_loader_s
    return step.begin_s - since_s - waited_s


def forward_s(ranks: ThreadCollectives, step: Step, *, at_once: bool) -> float:
    """Returns how long it is on the host from the batch to the first backward pass, without waits for
    other ranks; NaN with a collective in it that is not of the sending of buffers."""
    passes = [work.at_s for work in step.work if work.kind is Kind.BACKWARD]
    if not passes or not step.fetches:
        return NAN
    got_s = step.received_s
    waits = ranks.waits(got_s, passes[0])
    sent = [wait for wait in waits if wait.value("sent")]
    known = ranks.begun(got_s, passes[0]) == sum(wait.value("collectives") for wait in sent)
    if not at_once:
        # The host's own wait for a collective is none for the device.
        known &= len(sent) == len(waits)
    return passes[0] - got_s - ranks.waited_s(got_s, passes[0]) if known else NAN


def with_device_times(own: RankStepFigures, device: DeviceFigures) -> RankStepFigures:
    """Returns a step's figures by what the device did: the forward pass, and the time before the compute
    in which it did not wait for data. Those of the host where the pass is not known."""
    if math.isnan(own.forward_s):
        return own
    requested_s = device.t_start + own.in_loader_s
    waits_since_s = max(requested_s, device.previous_end)
    for_data_s = max(0.0, min(device.t_got, device.compute_start) - waits_since_s)
    before_s = device.compute_start - device.previous_end - for_data_s
    forward_s = device.forward_end - device.compute_start - device.sent_s
    return dataclasses.replace(
        own,
        between_s=NAN if math.isnan(own.between_s) else before_s,
        awaited_s=own.awaited_s + device.sent_s,
        # `max` would make 0 of what is not known.
        forward_s=NAN if math.isnan(forward_s) else max(0.0, forward_s),
    )


def with_ranks(marks: Columns, figures: Sequence[RankStepFigures | None]) -> Columns:
    """Returns the marks of steps, for `derive`, with what is this rank's own. A wait for other ranks in a
    loader is no wait for data: it is as if the batch had been requested later."""
    found = dict(marks)
    for name in ("batch_values", "between_s", "collectives", "awaited_s", "forward_s"):
        found[name] = np.array([NAN if f is None else getattr(f, name) for f in figures])
    found["t_start"] = marks["t_start"] + [0.0 if f is None else f.in_loader_s for f in figures]
    return found
