"""The steps of a process while its events arrive.

Each event is read once. What trains is decided anew each time, by what was counted of all that came
before; the steps are found from where the last one that was given out has ended, and only those are
given out that nothing which follows can change. A step is settled once two more have begun, once it
is over and a second has passed, or at the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Sequence, Set

from vitprof.watch.core.log import WERE_DROPPED, EventLog
from vitprof.watch.core.loop import Checkpoint, Step, Steps, Walk
from vitprof.watch.core.timeline import Thread, Threads, TimelineEntry, at_s, before_pending
from vitprof.watch.core.training import (
    Requests,
    Training,
    TrainingThread,
    find_feeding,
    find_trainer,
    take_entries,
)
from vitprof.watch.events import Description, Row

CONTEXT = 300
"""So many updates before the last settled step, and what came before each, show the habits of the
script."""
MOST_KEPT = 2000
"""Entries of a thread that does not train, and of an evaluation that goes on: the last ones are kept,
as they may turn out to be of the training."""
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
        """Has the descriptions alone: events are read at once."""
        self._threads = Threads(self._log)
        self._began_s = math.inf
        """When the first event happened."""
        self._followed: _Followed | None = None
        self._last: Step | None = None
        """The last step that was given out."""
        self._n_given = 0
        self.training: Training | None = None
        """What trains, as far as it is known by now."""

    def add(self, descriptions: Iterable[Description], rows: Iterable[Row]) -> None:
        """Adds what has arrived."""
        self._log.add(descriptions, ())
        rows = list(rows)
        if rows:
            _, at_s, *_ = rows[0]
            self._began_s = min(self._began_s, at_s)
        self._threads.read(rows)

    @property
    def why_incomplete(self) -> str:
        """Returns why some of what the process did is not among the events; "" where nothing says so."""
        return self._log.why_incomplete or (WERE_DROPPED if self._threads.were_dropped else "")

    @property
    def several_at_once(self) -> Set[int]:
        """Returns the loaders of which several iterators were open at once."""
        return self._threads.iterations.at_once

    @property
    def n_kept(self) -> int:
        """Returns how many requests and pieces of work are kept."""
        n_kept = sum(thread.n_kept for thread in self._threads.by_number.values())
        return n_kept if self._followed is None else n_kept + self._followed.n_kept

    def settle(self, now_s: float, *, finished: bool = False) -> Steps:
        """Returns the steps and evaluations that are settled by now and were not given out before.

        `now_s`: on the clock of the events. `finished`: nothing more will come.
        """
        followed = self._follow()
        for thread in self._threads.by_number.values():
            thread.keep_last(MOST_KEPT)
        if followed is None:
            self.training = None
            return Steps()
        walk = followed.walk()
        self.training = walk.training
        result = walk.result
        latest_s = now_s - SETTLED_AFTER_S
        if not (finished or self._habits_are_known(result, latest_s)):
            return Steps()
        n_settled = len(result.steps) if finished else _n_settled(result, latest_s)
        if not n_settled:
            return Steps(evaluations=result.evaluations) if finished else Steps()
        self._n_given += n_settled
        self._last = result.steps[n_settled - 1]
        end = walk.ends[n_settled - 1]
        followed.go_on_from(end, walk)
        n_evaluations = len(result.evaluations) if finished else end.evaluation
        return Steps(result.steps[:n_settled], result.evaluations[:n_evaluations])

    @property
    def n_given(self) -> int:
        """Returns how many steps were given out."""
        return self._n_given

    def unsettled(self) -> list[Step]:
        """Returns the steps that have ended by now, and that what follows may still change."""
        followed = self._follow()
        if followed is None:
            return []
        result = followed.walk().result
        return result.steps[:-1] if result.last_is_open else result.steps

    def _follow(self) -> _Followed | None:
        """Returns what trains, as far as it is known by now, with what it has done."""
        threads = self._threads.by_number
        trainer = find_trainer(threads, declares=self._log.declares)
        if trainer is None:
            return None
        entries = take_entries(threads, trainer)
        followed = self._followed
        if followed is None or not followed.is_of(trainer):
            if followed is not None:
                entries = [*followed.entries_of(trainer.thread), *entries]
            epoch = None
            if self._last is not None:
                # Something else seemed to train until then.
                epoch = self._last.epoch
                entries = [entry for entry in entries if at_s(entry) > self._last.end_s]
            followed = self._followed = _Followed(trainer, threads[trainer.thread], epoch)
        followed.add(entries, trainer)
        return followed

    def _habits_are_known(self, result: Steps, latest_s: float) -> bool:
        """Returns whether enough was seen to tell a habit: how often a script updates on a batch."""
        if self._last is not None or self._began_s < latest_s:
            return True
        return sum(step.samples > 0 for step in result.steps) >= LEAST_FED


class _Followed:
    """What the thread that trains has done since the last step that was given out. Of what it did
    before, its habits are kept."""

    def __init__(self, trainer: TrainingThread, thread: Thread, epoch: int | None) -> None:
        """`epoch`: that of the last step that was given out; None before any."""
        self._trainer = trainer
        self._thread = thread
        self._begin = Checkpoint(last_epoch=epoch)
        self._entries: list[TimelineEntry] = []
        self._requests = Requests()
        self._n_counted = 0
        """Entries whose requests are counted."""
        self._n_updates: deque[int] = deque(maxlen=CONTEXT)
        """The updates on each batch before these entries."""

    def is_of(self, trainer: TrainingThread) -> bool:
        """Returns whether the same thread trains, by the same kind of update."""
        known = self._trainer
        return (known.thread, known.update) == (trainer.thread, trainer.update)

    @property
    def n_kept(self) -> int:
        return len(self._entries)

    def entries_of(self, thread: int) -> Sequence[TimelineEntry]:
        """Returns what it did since the last step that was given out, if it is this thread."""
        return self._entries if thread == self._trainer.thread else ()

    def add(self, entries: Iterable[TimelineEntry], trainer: TrainingThread) -> None:
        """Adds what it did next. `trainer`: it by now, with other helpers, maybe."""
        self._trainer = trainer
        self._entries.extend(entries)
        n_certain = before_pending(self._entries)
        self._requests.add(self._entries[self._n_counted : n_certain], trainer)
        self._n_counted = max(self._n_counted, n_certain)

    def walk(self) -> Walk:
        """Finds the steps since the last one that was given out."""
        trainer = self._trainer
        feeding = find_feeding(self._requests, self._thread, trainer)
        training = Training(trainer.thread, trainer.update, self._entries, feeding, trainer.others)
        walk = Walk(training, self._n_updates, self._begin)
        walk.go()
        if walk.open_evaluation is not None:
            self._shorten(walk.open_evaluation)
        return walk

    def _shorten(self, evaluation: int) -> None:
        """Drops what is in the middle of an evaluation that goes on: all of it is walked through each
        time."""
        n_before = len(self._entries)
        del self._entries[evaluation + 1 : -MOST_KEPT]
        self._n_counted -= n_before - len(self._entries)

    def go_on_from(self, end: Checkpoint, walk: Walk) -> None:
        """Drops what is before a step's end, where the next walk begins."""
        self._n_updates.extend(walk.n_updates_before(end))
        # A request that is pending is kept: it is counted once it is known what came.
        n_dropped = min(end.entry, self._n_counted)
        del self._entries[:n_dropped]
        self._n_counted -= n_dropped
        first = end.entry - n_dropped
        self._begin = dataclasses.replace(end, entry=first, evaluation=0, batch=0)
        self._requests.keep_last(CONTEXT)


def _n_settled(result: Steps, latest_s: float) -> int:
    """Returns how many steps nothing that follows can change."""
    n_over = len(result.steps) - result.last_is_open
    n_settled = max(0, len(result.steps) - FOLLOWING)
    while n_settled < n_over and result.steps[n_settled].end_s <= latest_s:
        n_settled += 1
    return n_settled
