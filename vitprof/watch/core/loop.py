"""Where each step of a training begins and ends.

A step waits for one or several batches, and then works. In the order of the training thread's
timeline:

    state     | a batch that feeds it         | a batch that does not | work
    ----------+-------------------------------+-----------------------+----------------
    waiting   | the step waits for it         | evaluation begins     | the step works
    working   | this step ends, and the next  | this step ends;       | the step works
              | waits for it; but the first   | evaluation begins     |
              | of another loader before the  |                       |
              | update is this step's, too    |                       |
    evaluating| evaluation ends, and the next | evaluation goes on    | is no step's
              | step waits for it             |                       |

So a batch that is fetched ahead of the work on the one before is waited for by the step that
follows, and several that gradients are accumulated over, fetched at once, are waited for by one.
A request that finds the iteration over is a wait like any other, without samples.

Where the script updates on and on without asking for a batch, it trains on what is not seen: each
update is then a step whose wait is not known.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from vitprof.watch.core.timeline import Fetch, Work
from vitprof.watch.core.training import Training
from vitprof.watch.events import NAN, Kind

MOST_AGAIN = 3
"""So many updates on one batch are nothing unusual."""


class State(enum.Enum):
    """What the training thread does."""

    WAITING = "waiting"
    """It waits for the batches of the next step, or has them, and has not worked on them."""
    WORKING = "working"
    """It has worked on them: a backward pass, an optimizer's step, or its own mark."""
    EVALUATING = "evaluating"
    """It asks loaders that do not feed the training."""


@dataclass(slots=True)
class Step:
    """A step of a training."""

    epoch: int
    fetches: list[Fetch] = field(default_factory=list)
    """The batches that it waited for."""
    work: list[Work] = field(default_factory=list)
    end_s: float = NAN
    """When the next request ended it, or what is no part of training; NaN while it goes on."""
    after_evaluation: bool = False
    """Whether an evaluation was between the step before and its first request."""
    wait_is_known: bool = True
    """Whether all that it waited for was seen."""

    @property
    def wait_s(self) -> float:
        """Returns the seconds of all its waits."""
        return sum(fetch.wait_s for fetch in self.fetches)

    @property
    def received_s(self) -> float:
        """Returns when its last batch came."""
        return self.fetches[-1].received_s if self.fetches else NAN

    @property
    def samples(self) -> float:
        return sum(fetch.samples for fetch in self.fetches)

    @property
    def loss(self) -> float:
        """Returns the last loss that is known before its first update."""
        losses = [work.loss for work in self.work if not math.isnan(work.loss)]
        return losses[-1] if losses else NAN


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A time in which the training thread asked loaders that do not feed the training."""

    begin_s: float
    end_s: float


@dataclass(slots=True)
class Steps:
    """The steps of a training, and what was between them."""

    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    last_is_open: bool = False
    """Whether nothing has ended the last step: its work may go on."""


def find_steps(training: Training) -> Steps:
    """Returns the steps of a training, the last one as far as it came."""
    return _Loop(training).steps()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the updates between two batches are for."""

    updates: int
    """So many are for the batches that came last."""
    unfed: bool
    """Whether more follow: each of them is for a batch that was not seen."""


def allowances(training: Training) -> Iterator[Allowance]:
    """Yields what updates are for: before the first batch, after it, after the second, and so on.

    All are for the batches that came last, unless they are far more than after other batches: then
    as many as are usual.
    """
    counts = [0]
    for entry in training.entries:
        if isinstance(entry, Work):
            counts[-1] += training.is_update(entry)
        elif entry.loader in training.feeding and not entry.exhausted:
            counts.append(0)
    usual = statistics.median_low([n for n in counts[1:] if n] or [0])
    most = max(MOST_AGAIN, 2 * usual) if usual else 0
    for n in counts:
        yield Allowance(n, unfed=False) if n <= most else Allowance(usual, unfed=True)


class _Loop:
    """The walk along the training thread's timeline: one method for each column of the table above."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._found = Steps()
        self._state = State.WAITING
        self._step = Step(epoch=0)
        self._since_s = NAN
        """When the evaluation began."""
        self._allowances = allowances(training)
        self._allowance = next(self._allowances)
        self._n_updates = 0
        """Updates since the last batch."""
        self._last: Fetch | None = None
        """The last batch of an evaluation."""

    def steps(self) -> Steps:
        for entry in self._training.entries:
            if isinstance(entry, Work):
                self._work(entry)
            elif entry.loader not in self._training.feeding:
                self._evaluate(entry)
            else:
                self._wait(entry)
        self._leave()
        return self._found

    def _wait(self, fetch: Fetch) -> None:
        if self._state is State.EVALUATING:
            self._end_evaluation(fetch.since_s)
        elif self._state is State.WORKING and not self._is_of_this_step(fetch):
            self._end(fetch.since_s)
        if fetch.first and self._has_steps_in_epoch():
            self._step.epoch += 1
        self._step.fetches.append(fetch)
        self._state = State.WAITING
        if not fetch.exhausted:
            self._allowance = next(self._allowances)
            self._n_updates = 0

    def _evaluate(self, fetch: Fetch) -> None:
        self._last = fetch
        if self._state is State.EVALUATING:
            return
        if self._state is State.WORKING:
            self._end(fetch.since_s)
        elif all(waited.exhausted for waited in self._step.fetches):
            # The wait for an iteration's end is the next step's only where that follows at once.
            self._step.fetches.clear()
        self._since_s = fetch.since_s
        self._state = State.EVALUATING

    def _work(self, work: Work) -> None:
        if work.kind in (Kind.CHANGED, Kind.FINISHED):
            return
        if self._training.is_update(work):
            self._update(work)
            return
        if self._state is State.EVALUATING:
            return
        if work.kind is not Kind.ENTERED:
            self._state = State.WORKING
        self._step.work.append(work)

    def _update(self, work: Work) -> None:
        """Notes an update: nothing is updated in an evaluation."""
        if self._state is State.EVALUATING:
            self._end_evaluation()
        self._state = State.WORKING
        self._step.work.append(work)
        self._n_updates += 1
        if not self._allowance.unfed or self._n_updates < self._allowance.updates:
            return
        if self._n_updates > self._allowance.updates:
            self._step.fetches.clear()
            self._step.wait_is_known = False
        self._end(work.at_s)
        self._state = State.WAITING

    def _end_evaluation(self, until_s: float = NAN) -> None:
        """Ends an evaluation: at the next batch of training, else with the last of its own."""
        if math.isnan(until_s) and self._last is not None:
            until_s = self._last.received_s
        self._found.evaluations.append(Evaluation(self._since_s, until_s))
        self._step.after_evaluation = not self._step.fetches

    def _is_of_this_step(self, fetch: Fetch) -> bool:
        """Returns whether a step that has worked waits for this batch, too: of several loaders with a
        backward pass for each, before the update."""
        asked = {waited.loader for waited in self._step.fetches}
        updated = any(self._training.is_update(work) for work in self._step.work)
        return fetch.loader not in asked and not updated

    def _end(self, now_s: float) -> None:
        """Ends the step at the request that follows it, or as the script left the step it marks."""
        left = [work.at_s for work in self._step.work if work.kind is Kind.LEFT]
        self._step.end_s = left[-1] if left else now_s
        self._found.steps.append(self._step)
        self._step = Step(epoch=self._step.epoch)

    def _leave(self) -> None:
        """Ends the last step, or evaluation, with the last thing that was seen of it."""
        if self._state is State.WORKING:
            self._end(self._step.work[-1].at_s)
            self._found.last_is_open = True
        elif self._state is State.EVALUATING:
            self._end_evaluation()

    def _has_steps_in_epoch(self) -> bool:
        steps = self._found.steps
        return bool(steps) and steps[-1].epoch == self._step.epoch
