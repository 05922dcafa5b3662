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

Where nothing shows any work, and the script says which loader it trains on, each batch is a step, which
the next request ends. A run that is over for now ends the step with its last work.

Where the script updates on and on without asking for a batch, it trains on what is not seen: each
update is then a step whose wait is not known.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from vitprof.watch.core.timeline import Fetch, Work
from vitprof.watch.core.training import Training
from vitprof.watch.events import NAN, Kind

UNSEEN_FRAC = 0.03
"""Share of a step from which on a wait for its batch that may have been elsewhere matters."""
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


# Looked up once: of an enum's class that takes as long as to make a small object.
WAITING, WORKING, EVALUATING = State
ENTERED, LEFT, PAUSED = Kind.ENTERED, Kind.LEFT, Kind.PAUSED
NO_WORK = (Kind.CHANGED, Kind.FINISHED)
"""What is recorded of a thread and is no work on a batch."""


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
    """Whether an evaluation, or a pause of the run, was between the step before and its first request."""
    wait_is_known: bool = True
    """Whether all that it waited for was seen."""

    @property
    def wait_s(self) -> float:
        """Returns the seconds of all its waits."""
        wait_s = 0.0
        for fetch in self.fetches:
            wait_s += fetch.received_s - fetch.since_s
        return wait_s

    @property
    def left_s(self) -> float:
        """Returns how long, right before its requests, workers took to end of iterations that were left early."""
        return sum(fetch.left_s for fetch in self.fetches)

    @property
    def n_of_last_epoch(self) -> int:
        """Returns how many of its waits, the first ones, were for the end of an iteration before the one
        of its first batch."""
        n = 0
        for number, fetch in enumerate(self.fetches[:-1], 1):
            if fetch.exhausted:
                n = number
        return n

    @property
    def begin_s(self) -> float:
        """Returns when it began to wait, as if it had waited for the end of the last iteration right before
        its first batch: what the script does between two epochs is no work of a step."""
        n_before = self.n_of_last_epoch
        first = self.fetches[n_before]
        return first.since_s - sum(fetch.wait_s for fetch in self.fetches[:n_before])

    @property
    def received_s(self) -> float:
        """Returns when its last batch came."""
        return self.fetches[-1].received_s if self.fetches else NAN

    @property
    def is_marked(self) -> bool:
        """Returns whether the script marks it."""
        return any(work.kind is LEFT for work in self.work)

    @property
    def entered_s(self) -> float:
        """Returns when the script entered it, where it marks it; if that was before its batch came, when
        that came."""
        for work in self.work:
            if work.kind is ENTERED:
                return work.at_s
        return self.received_s

    @property
    def loaders(self) -> list[int]:
        """Returns the loaders that it has batches of, as they were asked. One that a script makes anew for
        each epoch is asked in vain before the next one."""
        return list(dict.fromkeys(fetch.loader for fetch in self.fetches if not fetch.exhausted))

    @property
    def begins_first(self) -> bool:
        """Returns whether the loader that it asks first begins an iteration: an epoch begins with that, not
        where another one has fewer batches and begins again."""
        received = [fetch for fetch in self.fetches if not fetch.exhausted]
        # A queue or pool has no iterations.
        of_loaders = [fetch for fetch in received if fetch.iterator != fetch.loader]
        if not of_loaders:
            return True
        leading = of_loaders[0].loader
        return any(fetch.first for fetch in of_loaders if fetch.loader == leading)

    @property
    def samples(self) -> float:
        samples = 0.0
        for fetch in self.fetches:
            samples += fetch.samples
        return samples

    @property
    def loss(self) -> float:
        """Returns the last loss that is known before its first update."""
        for work in reversed(self.work):
            if not math.isnan(work.loss):
                return work.loss
        return NAN


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


@dataclass(slots=True)
class Checkpoint:
    """Where a step has ended: a walk can go on from here as well as from the beginning."""

    entry: int = 0
    """The number of the entry that follows."""
    evaluation: int = 0
    """The number of the evaluation that follows."""
    batch: int = 0
    """The number of the batch that came last, 0 for one before all entries."""
    has_batch: bool = False
    """Whether any batch of the training has come."""
    n_updates: int = 0
    """Updates since then."""
    last_epoch: int | None = None
    """That of the step; None before any."""


START = Checkpoint()


def find_steps(training: Training) -> Steps:
    """Returns the steps of a training, the last one as far as it came."""
    walk = Walk(training)
    walk.go()
    return walk.result


def updates_of_batches(training: Training, n_before: int) -> list[int]:
    """Returns the number of updates before the first batch, on it, on the second, and so on.

    `n_before`: that of those before all entries, since the last batch.
    """
    update = training.update
    feeding = training.feeding
    counts = [n_before]
    for entry in training.entries:
        if isinstance(entry, Work):
            if entry.kind is update:
                counts[-1] += 1
        elif entry.loader in feeding and not entry.exhausted:
            counts.append(0)
    return counts


def allowed_updates(counts: Iterable[int], known: Iterable[int]) -> list[float]:
    """Returns how many of the updates on each batch are for it: each further one is for a batch that
    was not seen.

    All are, unless they are far more than on other batches: then as many as are usual. `known`: the
    updates on batches, by which it is told what is usual.
    """
    usual = statistics.median_low([n for n in known if n] or [0])
    most = max(MOST_AGAIN, 2 * usual) if usual else 0
    return [math.inf if n <= most else usual for n in counts]


class Walk:
    """The walk along the training thread's timeline: one method for each column of the table above."""

    def __init__(
        self, training: Training, known: Iterable[int] = (), begin: Checkpoint = START
    ) -> None:
        """`known`: the updates on each batch before those of these entries. `begin`: where a step has
        ended."""
        self.training = training
        self.result = Steps()
        self.ends: list[Checkpoint] = []
        """Where each step has ended."""
        self._begin = begin
        self._update_kind = training.update
        self._state = WAITING
        self._step = Step(begin.last_epoch or 0)
        self._last_epoch = begin.last_epoch
        self._has_updated = False
        """Whether this step has."""
        self._left_s: float | None = None
        """When the script left this step, which it marks."""
        self._entered_next: int | None = None
        """The number of the entry by which it has entered the next one, before any request."""
        self._since_s = NAN
        """When the evaluation began."""
        self._since_entry = 0
        """The number of its first entry."""
        self._counts = updates_of_batches(training, begin.n_updates)
        self._allowed = allowed_updates(self._counts, [*known, *self._counts[self._first_batch :]])
        self._batch = 0
        self._n_updates = begin.n_updates
        """Updates since the last batch."""
        self._entry = 0
        """The number of the entry that is read."""
        self._last: Fetch | None = None
        """The last batch of an evaluation."""

    @property
    def _first_batch(self) -> int:
        """Returns the number of the first batch: updates may come before any."""
        return 0 if self._begin.has_batch else 1

    def n_updates_before(self, end: Checkpoint) -> list[int]:
        """Returns the updates on each batch before the one that came last where a step ended."""
        return self._counts[self._first_batch : end.batch]

    @property
    def open_evaluation(self) -> int | None:
        """Returns the number of the first entry of an evaluation that nothing has ended; None without
        one."""
        return self._since_entry if self._state is EVALUATING else None

    def go(self) -> None:
        """Walks from the first entry to the last."""
        feeding = self.training.feeding
        for number, entry in enumerate(self.training.entries):
            self._entry = number
            if isinstance(entry, Work):
                self._work(entry)
            elif entry.loader in feeding:
                self._wait(entry)
            else:
                self._evaluate(entry)
        self._leave()

    def _wait(self, fetch: Fetch) -> None:
        if self._state is EVALUATING:
            self._end_evaluation(fetch.came_s)
        elif self._is_over_at(fetch):
            self._end(fetch.came_s, self._entry)
        if fetch.first:
            self._begin_iteration(fetch)
        self._step.fetches.append(fetch)
        self._state = WAITING
        if not fetch.exhausted:
            self._batch += 1
            self._n_updates = 0

    def _begin_iteration(self, fetch: Fetch) -> None:
        """Begins an epoch: batches of the loader that nothing has worked on are no part of it, the wait
        for the end of its last iteration is."""
        if not fetch.beside:
            self._drop_unused(fetch.loader)
        step = self._step
        if self._last_epoch == step.epoch:
            step.epoch += 1

    def _drop_unused(self, loader: int) -> None:
        """Drops the batches of a loader that nothing has worked on. Several that begin an iteration are
        an evaluation, though the loader trains: as of the accuracy on what it was trained with."""
        step = self._step
        unused = [f for f in step.fetches if f.loader == loader and not f.exhausted]
        if len(unused) < 2 or not unused[0].first:
            step.fetches = [f for f in step.fetches if f.loader != loader or f.exhausted]
            return
        until_s = max(f.until_s for f in step.fetches if f.loader == loader)
        self.result.evaluations.append(Evaluation(unused[0].came_s, until_s))
        self.result.evaluations.sort(key=lambda evaluation: evaluation.begin_s)
        step.fetches = [f for f in step.fetches if f.came_s >= until_s]
        step.after_evaluation = True

    def _is_over_at(self, fetch: Fetch) -> bool:
        """Returns whether a request ends the step before it."""
        if self._state is WORKING:
            return not self._is_of_this_step(fetch)
        return self._has_only_a_batch

    @property
    def _has_only_a_batch(self) -> bool:
        """Returns whether this step has a batch, and that is all that is seen of any step."""
        if self._update_kind is not None:
            return False
        return any(not waited.exhausted for waited in self._step.fetches)

    def _evaluate(self, fetch: Fetch) -> None:
        if self._update_kind is None and fetch.gradients:
            return  # it may be what is done with a batch
        if fetch.exhausted and self._state is not EVALUATING:
            return  # as of an epoch without a batch
        self._last = fetch
        if self._state is EVALUATING:
            return
        if self._state is WORKING or self._has_only_a_batch:
            self._end(fetch.came_s, self._entry)
        elif all(waited.exhausted for waited in self._step.fetches):
            # The wait for an iteration's end is the next step's only where that follows at once.
            self._step.fetches.clear()
        self._since_s = fetch.came_s
        self._since_entry = self._entry
        self._state = EVALUATING

    def _work(self, work: Work) -> None:
        kind = work.kind
        if kind is PAUSED:
            self._pause()
            return
        if kind is LEFT:
            self._left_s = work.at_s
            self._entered_next = None
        if kind is self._update_kind:
            self._update(work)
            return
        if kind in NO_WORK or self._state is EVALUATING:
            return
        if kind is not ENTERED:
            self._state = WORKING
        elif self._left_s is not None and self._entered_next is None:
            self._entered_next = self._entry
        self._step.work.append(work)

    def _update(self, work: Work) -> None:
        """Notes an update: nothing is updated in an evaluation, but there may be backward passes in it."""
        if self._state is EVALUATING and work.kind is Kind.BACKWARD:
            return
        if self._state is EVALUATING:
            self._end_evaluation()
        self._state = WORKING
        self._has_updated = True
        self._step.work.append(work)
        self._n_updates += 1
        allowed = self._allowed[self._batch]
        if math.isinf(allowed) or self._n_updates < allowed:
            return
        if self._n_updates > allowed:
            self._step.fetches.clear()
            self._step.wait_is_known = False
        self._end(work.at_s, self._entry + 1)
        self._state = WAITING

    def _end_evaluation(self, until_s: float = NAN) -> None:
        """Ends an evaluation: at the next batch of training, else with the last of its own."""
        if math.isnan(until_s) and self._last is not None:
            until_s = self._last.received_s
        self.result.evaluations.append(Evaluation(self._since_s, until_s))
        self._step.after_evaluation = not self._step.fetches

    def _is_of_this_step(self, fetch: Fetch) -> bool:
        """Returns whether a step that has worked waits for this batch, too: of several loaders with a
        backward pass for each, before the update."""
        if self._has_updated:
            return False
        return all(waited.loader != fetch.loader for waited in self._step.fetches)

    def _end(self, now_s: float, following: int) -> None:
        """Ends the step at the request that follows it, or as the script left the step it marks.

        `following`: the number of the entry that follows.
        """
        epoch = self._step.epoch
        last_epoch = self._last_epoch
        if last_epoch is not None and epoch > last_epoch and not self._step.begins_first:
            epoch = last_epoch
            self._step.epoch = epoch
        entered = list[Work]()
        self._step.end_s = now_s
        if self._left_s is not None:
            self._step.end_s = self._left_s
            while self._step.work[-1].kind is ENTERED:
                entered.append(self._step.work.pop())
        if self._entered_next is not None:
            following = self._entered_next
        unseen_s = sum(fetch.unseen_s for fetch in self._step.fetches)
        if unseen_s and unseen_s > UNSEEN_FRAC * (self._step.end_s - self._step.begin_s):
            self._step.wait_is_known = False
        self.result.steps.append(self._step)
        n_evaluations = len(self.result.evaluations)
        has_batch = self._begin.has_batch or self._batch > 0
        self.ends.append(
            Checkpoint(following, n_evaluations, self._batch, has_batch, self._n_updates, epoch)
        )
        self._step = Step(epoch, work=entered)
        self._last_epoch = epoch
        self._has_updated = False
        self._left_s = None
        self._entered_next = None

    def _pause(self) -> None:
        """Ends what goes on, as the run is over for now."""
        if self._state is WORKING:
            # A walk that goes on from here reads of the pause, too.
            self._end(self._step.work[-1].at_s, self._entry)
        elif self._state is EVALUATING:
            self._end_evaluation()
        self._step = Step(self._step.epoch, after_evaluation=True)
        self._state = WAITING

    def _leave(self) -> None:
        """Ends the last step, or evaluation, with the last thing that was seen of it."""
        if self._state is WORKING:
            self._end(self._step.work[-1].at_s, len(self.training.entries))
            self.result.last_is_open = True
        elif self._state is EVALUATING:
            self._end_evaluation()
        else:
            for loader in {fetch.loader for fetch in self._step.fetches}:
                self._drop_unused(loader)
