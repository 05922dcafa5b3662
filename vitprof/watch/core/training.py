"""Which thread trains, and which loaders feed it: each rule a function with one sentence."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vitprof.watch.core.log import EventLog
from vitprof.watch.core.timeline import Entry, Fetch, Work, timeline
from vitprof.watch.events import Kind

REGULAR_FRAC = 0.8
"""The share of updates before which a loader that feeds each of them is asked."""
LEAST_UPDATES = 3
"""Updates that show a habit."""


@dataclass(frozen=True, slots=True)
class Training:
    """What trains in a process."""

    thread: int
    update: Kind
    """What changes the parameters: `STEPPED`; `BACKWARD` where no optimizer of PyTorch's steps."""
    entries: Sequence[Entry] = field(repr=False)
    """The thread's timeline, with the updates of threads that fetch nothing."""
    feeding: frozenset[int] = frozenset()
    """The loaders whose batches it trains on."""
    others: frozenset[int] = frozenset()
    """Other threads that train."""

    def is_update(self, entry: Entry) -> bool:
        """Returns whether an entry of the timeline changes the parameters."""
        return isinstance(entry, Work) and entry.kind is self.update


def find_training(log: EventLog) -> Training | None:
    """Returns what trains; None where nothing in the log shows training."""
    timelines = {thread: timeline(log, events) for thread, events in log.threads().items()}
    update = _what_updates(timelines)
    if update is None:
        return None
    updating = _threads_that_update(timelines, update)
    if not updating:
        return None
    thread = _thread_that_trains(timelines, updating)
    helpers = [other for other in updating if other != thread and not _fetches(timelines[other])]
    entries = _with_updates(timelines[thread], [timelines[helper] for helper in helpers])
    training = Training(thread, update, entries)
    return dataclasses.replace(
        training,
        feeding=loaders_before_updates(training) | loaders_of_each_update(training),
        others=frozenset(updating) - {thread, *helpers},
    )


Timelines = dict[int, list[Entry]]


def _what_updates(timelines: Timelines) -> Kind | None:
    """Steps of optimizers update, of whichever: some scripts make one for each task. Without any,
    backward passes do, if parameters changed between them.
    """
    seen = {
        entry.kind for entries in timelines.values() for entry in entries if isinstance(entry, Work)
    }
    if Kind.STEPPED in seen:
        return Kind.STEPPED
    return Kind.BACKWARD if Kind.CHANGED in seen else None


def _threads_that_update(timelines: Timelines, update: Kind) -> list[int]:
    """Returns the threads with updates; the one that began first is the first."""
    began = dict[int, float]()
    for thread, entries in timelines.items():
        for entry in entries:
            if isinstance(entry, Work) and entry.kind is update:
                began[thread] = entry.at_s
                break
    return sorted(began, key=lambda thread: began[thread])


def _thread_that_trains(timelines: Timelines, updating: Sequence[int]) -> int:
    """The first thread that updates and fetches trains; if none does both, the one that differentiates
    most.

    Autograd's own thread may step an optimizer, in a hook of a gradient: it fetches nothing.
    """
    for thread in updating:
        if _fetches(timelines[thread]):
            return thread

    def passes(thread: int) -> int:
        entries = timelines[thread]
        return sum(isinstance(e, Work) and e.kind is Kind.BACKWARD for e in entries)

    return max([*updating, *timelines], key=passes)


def _fetches(entries: Iterable[Entry]) -> bool:
    return any(isinstance(entry, Fetch) for entry in entries)


def _with_updates(entries: Sequence[Entry], of_helpers: Iterable[Sequence[Entry]]) -> list[Entry]:
    """Returns the timeline of the thread that trains, with the work of threads that fetch nothing."""
    work = [entry for entries in of_helpers for entry in entries]
    return sorted([*entries, *work], key=_at_s)


def _at_s(entry: Entry) -> float:
    return entry.requested_s if isinstance(entry, Fetch) else entry.at_s


def loaders_before_updates(training: Training) -> frozenset[int]:
    """Returns the loaders that are asked last before an update: nearly always where they are asked
    without gradients, else half of the times that they are asked.

    The batches of a validation are followed by the next one of training before anything is updated.
    """
    quiet_votes: Counter[int] = Counter()
    votes: Counter[int] = Counter()
    runs: Counter[int] = Counter()
    n_updates = 0
    for fetches in _between_updates(training):
        n_updates += 1
        runs.update({fetch.loader for fetch in fetches})
        with_gradients = [fetch for fetch in fetches if fetch.gradients]
        if with_gradients:
            votes[with_gradients[-1].loader] += 1
        if not fetches[-1].gradients:
            quiet_votes[fetches[-1].loader] += 1
    usual = {loader for loader, n in votes.items() if 2 * n >= runs[loader]}
    quiet = {loader for loader, n in quiet_votes.items() if n >= REGULAR_FRAC * n_updates}
    if n_updates < LEAST_UPDATES:
        return frozenset(usual)
    return frozenset(usual | (quiet - evaluated_loaders(training.entries)))


def evaluated_loaders(entries: Iterable[Entry]) -> frozenset[int]:
    """Returns the loaders whose batches, where somebody looked, mostly went into a model without
    gradients."""
    looks: dict[int, list[bool]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry, Fetch) and entry.evaluated is not None:
            looks[entry.loader].append(entry.evaluated)
    return frozenset(loader for loader, seen in looks.items() if 2 * sum(seen) > len(seen))


def loaders_of_each_update(training: Training) -> frozenset[int]:
    """Returns the loaders that have as many batches, asked with gradients, before one update as before
    the next, as zipped ones do.
    """
    counts: dict[int, list[int]] = defaultdict(list)
    n_updates = 0
    for fetches in _between_updates(training):
        n_updates += 1
        with_gradients = [fetch.loader for fetch in fetches if fetch.gradients]
        for loader, n in Counter(with_gradients).items():
            counts[loader].append(n)
    if n_updates < LEAST_UPDATES:
        return frozenset()
    return frozenset(
        loader
        for loader, ns in counts.items()
        if ns.count(statistics.mode(ns)) >= REGULAR_FRAC * n_updates
    )


def _between_updates(training: Training) -> Iterable[list[Fetch]]:
    """Yields the batches before each update that has any, since the update before."""
    fetches: list[Fetch] = []
    for entry in training.entries:
        if isinstance(entry, Fetch):
            if not entry.exhausted:
                fetches.append(entry)
        elif training.is_update(entry) and fetches:
            yield fetches
            fetches = []
