"""The steps of a process while its events arrive.

Each time, what arrived is looked at together with the last events before it: what trains is decided
anew, and only steps are given out that nothing which follows can change. A step is settled once two
more have begun, once it is over and a second has passed, or at the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable

from vitprof.watch.core.log import EventLog
from vitprof.watch.core.loop import Step, Steps, find_steps
from vitprof.watch.core.training import Training, find_training
from vitprof.watch.events import Description, Event, Kind, Row

CONTEXT = 600
"""Events of each thread that are kept before the last settled step: some hundred steps of a plain loop,
by which the habits of the script are known."""
FOLLOWING = 2
"""A step is settled once so many more have begun."""
SETTLED_AFTER_S = 1.0
"""Or once it is over for so long (s)."""
LEAST_FED = 4
"""Nothing is settled before so many steps with a batch, unless they take longer than that."""


class LiveSteps:
    """Gives out each step of a process once, in order."""

    def __init__(self) -> None:
        self._log = EventLog()
        self._last: Step | None = None
        """The last step that was given out."""
        self._settled_s = -math.inf
        """When that ended; what ended before it was given out, too."""
        self.training: Training | None = None
        """What trains, as far as it is known by now."""

    def add(self, descriptions: Iterable[Description], rows: Iterable[Row]) -> None:
        """Adds what has arrived."""
        self._log.add(descriptions, rows)

    def add_events(self, events: Iterable[Event]) -> None:
        """Adds events that were read already."""
        self._log.events.extend(events)

    @property
    def n_kept(self) -> int:
        """Returns how many events are kept."""
        return len(self._log.events)

    def settle(self, now_s: float, *, finished: bool = False) -> Steps:
        """Returns the steps and evaluations that are settled by now and were not given out before.

        `now_s`: on the clock of the events. `finished`: nothing more will come.
        """
        self.training = find_training(self._log)
        if self.training is None:
            return Steps()
        found = find_steps(self.training)
        latest_s = now_s - SETTLED_AFTER_S
        if not (finished or self._habits_are_known(found, latest_s)):
            return Steps()
        new = Steps()
        for number, step in enumerate(found.steps):
            is_settled = finished or _is_settled(found, number, latest_s)
            if is_settled and step.end_s > self._settled_s:
                new.steps.append(self._numbered(found.steps, number))
        settled_s = new.steps[-1].end_s if new.steps else self._settled_s
        until_s = math.inf if finished else settled_s
        for evaluation in found.evaluations:
            if self._settled_s < evaluation.end_s <= until_s:
                new.evaluations.append(evaluation)
        self._settled_s = settled_s
        self._forget()
        return new

    def _habits_are_known(self, found: Steps, latest_s: float) -> bool:
        """Returns whether enough was seen to tell a habit: how often a script updates on a batch."""
        fed = sum(step.samples > 0 for step in found.steps)
        return self._last is not None or fed >= LEAST_FED or self._log.events[0].at_s < latest_s

    def _numbered(self, steps: list[Step], number: int) -> Step:
        """Returns a step with its epoch since the first event of all; `steps` count from an earlier one."""
        step = steps[number]
        epoch = step.epoch
        if self._last is not None and number:
            epoch = self._last.epoch + step.epoch - steps[number - 1].epoch
        self._last = dataclasses.replace(step, epoch=epoch)
        return self._last

    def _forget(self) -> None:
        """Drops the events that no later step needs."""
        kept = list[Event]()
        room: dict[int, int] = defaultdict(lambda: CONTEXT)
        requested = set[int]()
        for event in reversed(self._log.events):
            room[event.thread] -= event.at_s <= self._settled_s
            waits = event.kind is Kind.BEGUN and event.object not in requested
            if event.kind is Kind.REQUESTED:
                requested.add(event.object)
            if room[event.thread] >= 0 or waits:
                kept.append(event)
        kept.reverse()
        self._log.events = kept


def _is_settled(found: Steps, number: int, latest_s: float) -> bool:
    """Returns whether nothing that follows can change a step."""
    n_following = len(found.steps) - 1 - number
    if n_following >= FOLLOWING:
        return True
    is_open = found.last_is_open and not n_following
    return not is_open and found.steps[number].end_s <= latest_s
