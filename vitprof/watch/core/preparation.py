"""How long a script works on its batches after `next()` and before the model gets them: in a generator
around the loader, or in the loop. And how long it sleeps between the model and the optimizer, for parts
of a batch that come later. That is the training's wait too, and no wait for the loader has it. So is what
the thread that trains reads after its batch has come, in the loop or in the model.

Steps that were looked at tell it: see `patches.preparation`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from vitprof.watch.core.device_columns import DeviceFigures
from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Fetch
from vitprof.watch.events import NAN, Event, Kind, MarkedPoint

LEAST_SAMPLES = 8
"""Steps by which a share is told."""
LOOKS = (Kind.LOOKED_AT, Kind.MODEL_CALLED, Kind.USED, Kind.SPENT)
LEAST_READ_BYTES = 16 << 10
"""From so much on a step reads data: progress bars, trackers and `/proc` are read in less."""
COPIES = (MarkedPoint.COPYING, MarkedPoint.COPIED)


@dataclass(frozen=True, slots=True)
class PreparationSample:
    """What was seen of a step, in seconds."""

    step_s: float
    prepared_s: float
    """From a batch, or its copy, to the model, or to the next copy or request, while the device had
    nothing to do."""
    asleep_s: float
    """Between the model and the optimizer's step, for how long the thread used no core; NaN if others took
    one from the process, or where the device works on its own."""

    @property
    def all_s(self) -> float:
        """Returns what of it is no work, as far as it is known."""
        asleep_s = 0.0 if math.isnan(self.asleep_s) else self.asleep_s
        return self.prepared_s + asleep_s


@dataclass(slots=True)
class PreparationSums:
    """The sums of looks (s)."""

    n: int = 0
    step_s: float = 0.0
    prepared_s: float = 0.0
    asleep_s: float = 0.0
    """Of steps for which that is known, and for how long these took."""
    known_s: float = 0.0

    def add(self, sample: PreparationSample) -> None:
        self.n += 1
        self.step_s += sample.step_s
        self.prepared_s += sample.prepared_s
        if not math.isnan(sample.asleep_s):
            self.asleep_s += sample.asleep_s
            self.known_s += sample.step_s


@dataclass(frozen=True, slots=True)
class Pause:
    """What passed before a step, in seconds."""

    between_s: float = 0.0
    """From the optimizer's step before to the request; 0 where that is not known."""
    round_s: float = 0.0
    """See `round_s`."""
    left_s: float = 0.0
    """For how long workers ended of loops that were left early; no part of `between_s`."""


class Pauses:
    """Adds up what passed before each step. It is known of all steps, so none is left to chance: where
    one in twenty is followed by a checkpoint, those that were looked at had 76% in place of 59%."""

    def __init__(self) -> None:
        self._between_s = 0.0
        self._rounds_s = 0.0
        self._left_s = 0.0
        self._longest: Pause | None = None
        """It is in no sum: one pause is no habit."""

    def add(self, pause: Pause) -> None:
        if self._longest is None:
            self._longest = pause
            return
        if pause.between_s > self._longest.between_s:
            counted = self._longest
            self._longest = pause
        else:
            counted = pause
        self._between_s += counted.between_s
        self._rounds_s += counted.round_s
        self._left_s += counted.left_s

    @property
    def left_frac(self) -> float:
        return self._left_s / self._rounds_s if self._left_s else 0.0

    @property
    def frac(self) -> float:
        return self._between_s / self._rounds_s


@dataclass(frozen=True, slots=True)
class Spent:
    """What the thread that trains did itself in a step, from its batch to the backward pass."""

    step_s: float
    read_bytes: float
    """NaN where that is not known."""
    asleep_s: float
    """For how long it neither used a core nor waited for one; NaN where it may wait for a device, or for
    other ranks."""


@dataclass(slots=True)
class SpentSums:
    """The sums of what steps spent."""

    n: int = 0
    """Steps of which it is known what they read."""
    n_reading: int = 0
    """Those that read at least `LEAST_READ_BYTES`."""
    read_bytes: float = 0.0
    asleep_s: float = 0.0
    known_s: float = 0.0
    """How long the steps took of which it is known for how long they slept."""
    step_s: float = 0.0
    """How long all of them took."""

    def add(self, spent: Spent) -> None:
        self.step_s += spent.step_s
        if not math.isnan(spent.read_bytes):
            self.n += 1
            self.n_reading += spent.read_bytes >= LEAST_READ_BYTES
            self.read_bytes += spent.read_bytes
        if not math.isnan(spent.asleep_s):
            self.asleep_s += spent.asleep_s
            self.known_s += spent.step_s

    def facts(self) -> dict[str, float]:
        """Returns the facts of these steps, by their names in a recording."""
        facts = {}
        if self.n >= LEAST_SAMPLES:
            facts["reading_steps_frac"] = self.n_reading / self.n
            facts["step_read_bytes"] = self.read_bytes / self.n
        if self.known_s > self.step_s / 4:
            facts["slept_frac"] = self.asleep_s / self.known_s
        return facts


class PreparedSteps:
    """Adds up what was seen of the steps that are given out."""

    def __init__(self, warmup_steps: int) -> None:
        self._events: dict[int, list[Event]] = {}
        """By thread: looks, and the copies of batches."""
        self._warmup_steps = warmup_steps
        self._n = 0
        self._before: Step | None = None
        self._longest: PreparationSample | None = None
        """The step with the longest pauses, which is in no sum: one pause is no habit."""
        self._totals = PreparationSums()
        self._pauses = Pauses()
        self._little_s = 0.0
        """What a framework does itself, as it was said last."""
        self._spent = SpentSums()

    def add(self, events: Iterable[Event]) -> None:
        """Adds events that have arrived."""
        for event in events:
            is_copy = event.kind is Kind.MARKED and event.value("place") in COPIES
            if is_copy or event.kind in LOOKS:
                self._events.setdefault(event.thread, []).append(event)

    def take(
        self, thread: int, steps: Sequence[Step], device: Sequence[DeviceFigures | None]
    ) -> None:
        """Adds the next steps of the thread that trains. `device`: what an asynchronous device did of
        each."""
        events = self._events.get(thread, [])
        for step, on_device in zip(steps, device, strict=True):
            first = bisect.bisect_left(events, _begin_s(step), key=attrgetter("at_s"))
            last = bisect.bisect_left(events, step.end_s, key=attrgetter("at_s"))
            if self._n >= self._warmup_steps:
                free_s = -math.inf if on_device is None else on_device.free_s
                self._add_pause(step, events[first:last])
                sample = look_at(step, events[first:last], free_s)
                if sample is not None:
                    self._add(sample)
                spent = spent_in(step, events[first:last])
                if spent is not None:
                    self._spent.add(spent)
            del events[:last]
            self._before = step
            self._n += 1

    def facts(self) -> dict[str, float]:
        """Returns the facts of the steps so far, by their names in a recording."""
        facts = self._spent.facts()
        if self._pauses.left_frac > 0:
            facts["left_early_frac"] = self._pauses.left_frac
        totals = self._totals
        if totals.n < LEAST_SAMPLES - 1:
            return facts
        facts["outside_next_frac"] = totals.prepared_s / totals.step_s
        facts["between_steps_frac"] = self._pauses.frac
        if totals.known_s > totals.step_s / 4:
            facts["asleep_frac"] = totals.asleep_s / totals.known_s
        return facts

    def _add_pause(self, step: Step, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind is Kind.LOOKED_AT:
                self._little_s = event.value("little_s")
        if step.fetches:
            left_s = 0.0 if step.after_evaluation else step.left_s
            pause_s = max(0.0, between_s(step, self._before) - left_s - self._little_s)
            self._pauses.add(Pause(pause_s, round_s(step, self._before), left_s))

    def _add(self, sample: PreparationSample) -> None:
        if self._longest is None:
            self._longest = sample
        elif sample.all_s > self._longest.all_s:
            self._totals.add(self._longest)
            self._longest = sample
        else:
            self._totals.add(sample)


def _begin_s(step: Step) -> float:
    return step.begin_s if step.fetches else step.work[0].at_s


def look_at(step: Step, events: Sequence[Event], free_s: float) -> PreparationSample | None:
    """Returns what was seen of a step; None where it was not looked at, or no model was called in it.

    `events`: of looks and copies in it. `free_s`: when the device had nothing left to do of the steps
    before; NaN where that is not known.
    """
    looked = [event for event in events if event.kind is Kind.LOOKED_AT]
    called = [event for event in events if event.kind is Kind.MODEL_CALLED]
    if not looked or not called or not step.fetches or math.isnan(free_s):
        return None
    little_s = looked[0].value("little_s")
    spans = preparing(step, events)
    prepared_s = sum(max(0.0, until_s - max(since_s, free_s)) for since_s, until_s in spans)
    return PreparationSample(
        step_s=step.end_s - _begin_s(step),
        prepared_s=max(0.0, prepared_s - little_s),
        asleep_s=asleep_s(events),
    )


def preparing(step: Step, events: Sequence[Event]) -> Iterator[tuple[float, float]]:
    """Yields when the script worked on a batch: from where that or a copy of it came, to the next copy,
    request or call of the model. Where the model is called again after an update, from that."""
    since_s = stepped_s = NAN
    is_called = False
    for at_s, what in moments(step, events):
        if what in ("received", "copied"):
            if not is_called:
                since_s = at_s
            continue
        if what == "stepped":
            stepped_s = at_s
            continue
        if what == "called":
            is_called = True
            since_s = since_s if math.isnan(stepped_s) else stepped_s
        stepped_s = NAN
        if not math.isnan(since_s):
            yield since_s, at_s
            since_s = NAN


def moments(step: Step, events: Sequence[Event]) -> list[tuple[float, str]]:
    """Returns what happened in a step, in order."""
    batches = step.fetches[step.n_of_last_epoch :]
    unsorted = [(fetch.received_s, "received") for fetch in batches]
    unsorted += [(fetch.came_s, "requested") for fetch in batches[1:]]
    for event in events:
        if event.kind is Kind.MODEL_CALLED:
            unsorted.append((event.at_s, "called"))
        elif event.kind is Kind.USED:
            unsorted.append((event.at_s, "stepped"))
        elif event.kind is Kind.MARKED:
            is_end = event.value("place") == MarkedPoint.COPIED
            unsorted.append((event.at_s, "copied" if is_end else "copying"))
    # Of the same time they stay in the order in which they were recorded.
    return sorted(unsorted, key=itemgetter(0))


def between_s(step: Step, before: Step | None) -> float:
    """Returns the time from the optimizer's step before it to its request; 0 with an evaluation between
    them, and without such a step."""
    if before is None or step.after_evaluation:
        return 0.0
    stepped = [work.at_s for work in before.work if work.kind is Kind.STEPPED]
    return step.begin_s - stepped[-1] if stepped else 0.0


def round_s(step: Step, before: Step | None) -> float:
    """Returns the time from the beginning of the step before it to its own, which what is between them is
    a part of; its own time with an evaluation between them, and without a step before.
    """
    if before is None or step.after_evaluation:
        return step.end_s - _begin_s(step)
    return _begin_s(step) - _begin_s(before)


def asleep_s(events: Sequence[Event]) -> float:
    """Returns for how long the thread used no core between calls of the model and the steps of the
    optimizer after them; NaN where others took one from the process meanwhile, or a step was another
    thread's."""
    asleep = 0.0
    called: Event | None = None
    for event in events:
        if event.kind is Kind.MODEL_CALLED:
            called = event
        elif event.kind is Kind.USED and called is not None:
            if event.value("taken") != called.value("taken"):  # NaN, too
                return NAN
            used_s = event.value("cpu_s") - called.value("cpu_s")
            asleep += max(0.0, event.at_s - called.at_s - used_s)
            called = None
    return asleep if called is None else NAN


def is_within(fetch: Fetch, since_s: float, until_s: float) -> bool:
    """Returns whether a part of the wait for a batch was in this time."""
    return max(fetch.came_s, since_s) < min(fetch.until_s, until_s)


def spent_in(step: Step, events: Sequence[Event]) -> Spent | None:
    """Returns what the thread that trains did itself in a step, without its waits for batches; None where
    the step was not looked at up to its work."""
    worked_s = {work.at_s for work in step.work}
    noted = [event for event in events if event.kind is Kind.SPENT]
    while noted and noted[-1].at_s not in worked_s:
        noted.pop()
    if len(noted) < 2:
        return None
    read_bytes = 0.0
    asleep_s = 0.0
    for before, after in itertools.pairwise(noted):
        if any(is_within(fetch, before.at_s, after.at_s) for fetch in step.fetches):
            continue
        read_bytes += after.value("read_bytes") - before.value("read_bytes")
        used_s = after.value("cpu_s") - before.value("cpu_s")
        queued_s = after.value("queued_s") - before.value("queued_s")
        asleep_s += after.at_s - before.at_s - used_s - queued_s
    if asleep_s < 0:  # clocks of their own
        asleep_s = 0.0
    return Spent(step.end_s - _begin_s(step), read_bytes, asleep_s)
