"""Which thread trains, and which loaders feed it: each rule a function with one sentence."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vitprof.watch.core.log import EventLog, row_of
from vitprof.watch.core.timeline import Fetch, Thread, Threads, TimelineEntry, Work, at_s
from vitprof.watch.events import Kind

REGULAR_FRAC = 0.8
"""The share of updates before which a loader that feeds each of them is asked."""
LEAST_UPDATES = 3
"""Updates that show a habit."""


@dataclass(frozen=True, slots=True)
class TrainingThread:
    """Who trains in a process."""

    thread: int
    update: Kind | None
    """What changes the parameters: `STEPPED`; `BACKWARD` where no optimizer of PyTorch's steps; `LEFT`
    where the script marks its steps, and nothing else shows them. None where each batch is a step."""
    helpers: tuple[int, ...]
    """Threads that update for it, and fetch nothing."""
    others: frozenset[int]
    """Other threads that train."""
    declares: bool
    """Whether the script says which loaders it trains on."""
    since_s: float
    """Since when updates are known to be some."""


@dataclass(frozen=True, slots=True)
class Training:
    """What trains in a process."""

    thread: int
    update: Kind | None
    """See `TrainingThread`."""
    entries: Sequence[TimelineEntry] = field(repr=False)
    """The thread's timeline, with the updates of threads that fetch nothing."""
    feeding: frozenset[int] = frozenset()
    """The loaders whose batches it trains on."""
    others: frozenset[int] = frozenset()
    """Other threads that train."""

    def is_update(self, entry: TimelineEntry) -> bool:
        """Returns whether an entry of the timeline changes the parameters."""
        return isinstance(entry, Work) and entry.kind is self.update


def find_training(log: EventLog) -> Training | None:
    """Returns what trains; None where nothing in the log shows training."""
    threads = Threads(log)
    threads.read(row_of(event) for event in log.events)
    trainer = find_trainer(threads.by_number, declares=log.declares)
    if trainer is None:
        return None
    entries = take_entries(threads.by_number, trainer)
    requests = Requests()
    requests.add(entries, trainer)
    feeding = find_feeding(requests, threads.by_number[trainer.thread], trainer)
    return Training(trainer.thread, trainer.update, entries, feeding, trainer.others)


def find_trainer(threads: Mapping[int, Thread], *, declares: bool) -> TrainingThread | None:
    """Returns who trains, by all that the threads have done so far; None where nobody does.

    `declares`: the script says which loaders it trains on. It does, once it has asked one of these.
    """
    on_declared = [number for number, thread in threads.items() if thread.declared]
    if declares and not on_declared:
        return None
    update = _what_updates(list(threads.values()))
    if update is not None:
        updating = _threads_that_update(threads, update)
    else:
        updating = on_declared
    if not updating:
        return None
    trains = _thread_that_trains(threads, updating)
    helpers = [number for number in updating if number != trains and not threads[number].fetches]
    others = frozenset(updating) - {trains, *helpers}
    since_s = threads[trains].changed_since_s if update is Kind.BACKWARD else -math.inf
    return TrainingThread(trains, update, tuple(helpers), others, declares, since_s)


def _what_updates(threads: Sequence[Thread]) -> Kind | None:
    """Steps of optimizers update, of whichever: some scripts make one for each task. Without any,
    backward passes do, if parameters changed between them; without these, the steps that a script marks.

    Steps that the script marks do as well, where they are more than those of optimizers: in a CUDA graph
    nothing is seen of these.
    """
    kinds = {kind for thread in threads for kind in thread.first_s}
    if sum(thread.n_left for thread in threads) > sum(thread.n_stepped for thread in threads):
        return Kind.LEFT
    if Kind.STEPPED in kinds:
        return Kind.STEPPED
    if Kind.CHANGED in kinds:
        return Kind.BACKWARD
    return Kind.LEFT if Kind.LEFT in kinds else None


def _threads_that_update(threads: Mapping[int, Thread], update: Kind) -> list[int]:
    """Returns the threads with updates; the one that began first is the first."""
    began = {number: t.first_s[update] for number, t in threads.items() if update in t.first_s}
    return sorted(began, key=lambda number: began[number])


def _thread_that_trains(threads: Mapping[int, Thread], updating: Sequence[int]) -> int:
    """The first thread that updates and fetches trains; if none does both, the one that differentiates
    most.

    Autograd's own thread may step an optimizer, in a hook of a gradient: it fetches nothing.
    """
    for number in updating:
        if threads[number].fetches:
            return number
    return max([*updating, *threads], key=lambda number: threads[number].n_passes)


def take_entries(threads: Mapping[int, Thread], trainer: TrainingThread) -> list[TimelineEntry]:
    """Returns what the thread that trains has done since the last call, with the work of its helpers."""
    entries = threads[trainer.thread].take()
    if trainer.helpers:
        for helper in trainer.helpers:
            entries += threads[helper].take()
        entries.sort(key=at_s)
    return entries


LEAST_RESUMED = 3
"""So often an iteration goes on as another one begins, if that is a loop within it: an evaluation goes through its
loader between two updates, but may be cut short once."""
MOST_ITERATORS = 1000
"""Iterators of which it is known when a batch was last requested."""
LoaderRequest = tuple[int, bool]
"""The number of a loader that was asked for a batch, and whether gradients were on."""


class Requests:
    """The batches before each update that has any, since the update before."""

    def __init__(self) -> None:
        self._before_updates: list[tuple[LoaderRequest, ...]] = []
        self._since: list[LoaderRequest] = []
        """Those since the last update."""
        self._asked: set[int] = set()
        """The iterators that gave a batch with gradients, before the last update."""
        self._asked_since: set[int] = set()
        """Those since then."""
        self._resumed: Counter[int] = Counter()
        """By loader: how often an iteration over it went on after an update, and another one was begun right after
        that."""
        self._may_be_around: set[int] = set()
        """Loaders whose iteration has gone on since the last update."""

    def add(self, entries: Iterable[TimelineEntry], trainer: TrainingThread) -> None:
        """Adds what the thread that trains did next."""
        since = self._since
        update = trainer.update
        for entry in entries:
            if isinstance(entry, Fetch):
                if entry.exhausted:
                    continue
                if entry.gradients:
                    self._note_iteration(entry)
                request = (entry.loader, entry.gradients)
                # An evaluation has thousands: how often a loader is asked so, no rule wants to know.
                if entry.gradients or not since or since[-1] != request:
                    since.append(request)
            elif entry.kind is update:
                if since and entry.at_s >= trainer.since_s:
                    self._before_updates.append(tuple(since))
                    self._asked.update(self._asked_since)
                since.clear()
                self._asked_since.clear()
                self._may_be_around.clear()

    def _note_iteration(self, fetch: Fetch) -> None:
        """Notes whether an iteration goes on with this batch after an update, or is begun after such a batch. Queues
        and pools have none."""
        if fetch.iterator == fetch.loader:
            return
        if fetch.first:
            self._resumed.update(self._may_be_around - {fetch.loader})
            self._may_be_around.clear()
        elif fetch.iterator in self._asked:
            self._may_be_around.add(fetch.loader)
        if len(self._asked) > MOST_ITERATORS:
            self._asked.clear()
        self._asked_since.add(fetch.iterator)

    def around_others(self) -> frozenset[int]:
        """Returns the loaders of which an iteration went on, several times, before that over another one was begun."""
        return frozenset(loader for loader, n in self._resumed.items() if n >= LEAST_RESUMED)

    def keep_last(self, most: int) -> None:
        """Drops those before the last updates."""
        del self._before_updates[:-most]

    def counted(self) -> Counter[tuple[LoaderRequest, ...]]:
        """Returns what is before an update, and before how many: nearly always it is the same."""
        return Counter(self._before_updates)


def find_feeding(requests: Requests, thread: Thread, trainer: TrainingThread) -> frozenset[int]:
    """Returns the loaders whose batches the training is fed with. `thread`: the one that trains."""
    if trainer.update is None:
        return frozenset(thread.declared)
    counted = requests.counted()
    evaluated = evaluated_loaders(thread.looked_at)
    feeding = (
        loaders_before_updates(counted, evaluated)
        | loaders_of_each_update(counted)
        | loaders_of_usual_updates(counted)
        | loaders_around_others(counted, requests.around_others() - evaluated)
    )
    return feeding & thread.declared if trainer.declares else feeding


def loaders_before_updates(
    requests: Counter[tuple[LoaderRequest, ...]], evaluated: frozenset[int]
) -> frozenset[int]:
    """Returns the loaders that are asked last before an update: nearly always where they are asked
    without gradients, else half of the times that they are asked.

    The batches of a validation are followed by the next one of training before anything is updated.
    """
    quiet_votes: Counter[int] = Counter()
    votes: Counter[int] = Counter()
    runs: Counter[int] = Counter()
    for before_update, n in requests.items():
        for loader in {loader for loader, _ in before_update}:
            runs[loader] += n
        with_gradients = [loader for loader, gradients in before_update if gradients]
        if with_gradients:
            votes[with_gradients[-1]] += n
        last_loader, last_with_gradients = before_update[-1]
        if not last_with_gradients:
            quiet_votes[last_loader] += n
    usual = frozenset(loader for loader, n in votes.items() if 2 * n >= runs[loader])
    n_updates = requests.total()
    if n_updates < LEAST_UPDATES:
        return usual
    quiet = {loader for loader, n in quiet_votes.items() if n >= REGULAR_FRAC * n_updates}
    return usual | (quiet - evaluated)


def evaluated_loaders(looked_at: Iterable[Fetch]) -> frozenset[int]:
    """Returns the loaders whose batches, where somebody looked, mostly went into a model without
    gradients."""
    looks: dict[int, list[bool]] = defaultdict(list)
    for fetch in looked_at:
        if fetch.evaluated is not None:
            looks[fetch.loader].append(fetch.evaluated)
    return frozenset(loader for loader, seen in looks.items() if 2 * sum(seen) > len(seen))


def loaders_around_others(
    requests: Counter[tuple[LoaderRequest, ...]], around_others: frozenset[int]
) -> frozenset[int]:
    """Returns those of the loaders whose iteration goes on before another one is begun that give a batch at a time: as
    of a loop within a loop.

    A validation has several batches, or begins anew.
    """
    several = {
        loader
        for before_update in requests
        for loader, n in Counter(loader for loader, _ in before_update).items()
        if n > 1
    }
    return around_others - several


def loaders_of_each_update(requests: Counter[tuple[LoaderRequest, ...]]) -> frozenset[int]:
    """Returns the loaders that have as many batches, asked with gradients, before one update as before
    the next, as zipped ones do.
    """
    n_updates = requests.total()
    if n_updates < LEAST_UPDATES:
        return frozenset()
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for before_update, n in requests.items():
        batches = Counter(loader for loader, gradients in before_update if gradients)
        for loader, n_batches in batches.items():
            counts[loader][n_batches] += n
    return frozenset(
        loader
        for loader, of_loader in counts.items()
        if max(of_loader.values()) >= REGULAR_FRAC * n_updates
    )


@dataclass(frozen=True, slots=True)
class Asking:
    """How a script asks for batches with gradients before an update."""

    n_batches: int
    n_loaders: int


def asking_of(requests: tuple[LoaderRequest, ...]) -> Asking:
    """Returns how batches were asked for before one update."""
    with_gradients = [loader for loader, gradients in requests if gradients]
    return Asking(len(with_gradients), len(set(with_gradients)))


def loaders_of_usual_updates(requests: Counter[tuple[LoaderRequest, ...]]) -> frozenset[int]:
    """Returns the loaders that are asked, with gradients, where as many are asked as before nearly each
    update, for as many batches: those of zipped ones that are made anew for each epoch, and whichever
    are drawn for a step.

    The batches of a validation come in addition, before few updates.
    """
    n_updates = requests.total()
    if n_updates < LEAST_UPDATES:
        return frozenset()
    kinds: Counter[Asking] = Counter()
    for before_update, n in requests.items():
        kinds[asking_of(before_update)] += n
    usual, n_usual = kinds.most_common(1)[0]
    if n_usual < REGULAR_FRAC * n_updates:
        return frozenset()
    return frozenset(
        loader
        for before_update in requests
        if asking_of(before_update) == usual
        for loader, gradients in before_update
        if gradients
    )
