"""Events written by hand: what a script does, word by word, at times that nobody measured."""

from __future__ import annotations

import math

from vitprof.watch.core.log import EventLog
from vitprof.watch.events import NAN, Description, Event, Kind

TRAIN, CHECK, OTHER = 101, 102, 103
"""Numbers of loaders. That of an iterator over one is a hundred times as high, and more."""
QUEUE = 21
OPTIMIZER, ANOTHER_OPTIMIZER = 11, 12
MAIN, HELPER = 1, 2
"""Threads."""
SAMPLES = 4.0


class Script:
    """A script that takes its time: `wait_s` for each batch, `work_s` for all else."""

    def __init__(self, wait_s: float = 0.010, work_s: float = 0.001) -> None:
        self.log = EventLog()
        self.now_s = 0.0
        self._wait_s = wait_s
        self._work_s = work_s
        self._iterators: dict[tuple[int, int], int] = {}
        for loader in (TRAIN, CHECK, OTHER):
            self.log.descriptions[loader] = Description(loader, "loader", {"dataset": str(loader)})

    def begin(
        self,
        loader: int,
        thread: int = MAIN,
        *,
        seconds: float = 0.0,
        drawing_s: float = 0.0,
    ) -> None:
        """Begins an iteration, which takes so long, and its sampler a part of that."""
        since_s = self.now_s
        self._sample(0, drawing_s)
        self.now_s = since_s + seconds
        iterator = 100 * loader + len(self.log.descriptions)
        self._iterators[loader, thread] = iterator
        self.log.descriptions[iterator] = Description(iterator, "iterator", {"loader": loader})
        self._add(Kind.BEGUN, thread, iterator, loader, since_s)

    def fetch(
        self, loader: int, *, quiet: bool = False, thread: int = MAIN, samples: float = SAMPLES
    ) -> None:
        """Requests a batch and gets it; `quiet`: without gradients."""
        if (loader, thread) not in self._iterators:
            self.begin(loader, thread)
        iterator = self._iterators[loader, thread]
        self._add(Kind.REQUESTED, thread, iterator, NAN, 0.0 if quiet else 1.0)
        self.now_s += self._wait_s
        self._add(Kind.RECEIVED, thread, iterator, samples, self.now_s, NAN)

    def fetch_made(
        self,
        loader: int,
        *,
        sampler_s: float = 0.0,
        starts_s: float = 0.0,
        hands_over_s: float = 0.0,
        ends_s: float = 0.0,
        frees_s: float = 0.0,
        worker: float = NAN,
        ahead: bool = False,
    ) -> None:
        """Requests a batch and gets it, which is made in `wait_s`: in the loop, after its sampler, or by a
        worker, before that; `ahead`: before it is requested. Workers start first and end last, where that takes
        any time; then the iterator is freed."""
        if (loader, MAIN) not in self._iterators:
            self.begin(loader)
        iterator = self._iterators[loader, MAIN]
        is_by_worker = not math.isnan(worker)
        self._add(Kind.REQUESTED, MAIN, iterator, 0.0 if is_by_worker else NAN, 1.0)
        self.now_s += starts_s
        if not is_by_worker:
            self._sample(iterator, sampler_s)
        made_s = self.now_s + (0.0 if ahead else self._wait_s)
        start_s = made_s - self._wait_s
        self.now_s = made_s + hands_over_s
        if is_by_worker:
            self._sample(iterator, sampler_s)
        self._add(Kind.RECEIVED, MAIN, iterator, SAMPLES, self.now_s, NAN)
        self._add(Kind.MADE, MAIN, iterator, self._wait_s, 0.0, 0.0)
        self._add(Kind.MADE_BETWEEN, MAIN, iterator, start_s, made_s, worker)
        if ends_s:
            self.end_workers(iterator, ends_s)
        if frees_s:
            self.free(iterator, frees_s)

    def end_workers(self, iterator: int, seconds: float) -> None:
        """Drops an iterator, whose workers take so long to end."""
        since_s = self.now_s
        self.now_s += seconds
        self._add(Kind.SHUT_DOWN, MAIN, iterator, since_s)

    def leave(self, loader: int, *, ends_s: float = 0.0, frees_s: float = 0.0) -> None:
        """Drops the iterator of a loop that is left early: its workers end, and what it held is freed."""
        iterator = self._iterators.pop((loader, MAIN))
        if ends_s:
            self.end_workers(iterator, ends_s)
        if frees_s:
            self.free(iterator, frees_s)

    def free(self, iterator: int, seconds: float) -> None:
        """Frees an iterator, which takes so long."""
        since_s = self.now_s
        self.now_s += seconds
        self._add(Kind.FREED, MAIN, iterator, since_s)

    def _sample(self, iterator: int, seconds: float) -> None:
        if seconds:
            since_s = self.now_s
            self.now_s += seconds
            self._add(Kind.SAMPLED, MAIN, iterator, since_s)

    def fetch_of(self, loader: int, iterator_of: int, *, quiet: bool = False) -> None:
        """Fetches in the main thread a batch of the iterator that was begun in another one's name."""
        iterator = self._iterators[loader, iterator_of]
        self._add(Kind.REQUESTED, MAIN, iterator, NAN, 0.0 if quiet else 1.0)
        self.now_s += self._wait_s
        self._add(Kind.RECEIVED, MAIN, iterator, SAMPLES, self.now_s, NAN)

    def fetch_from_queue(self, loader: int) -> None:
        """Requests a batch, which workers put into a queue."""
        iterator = self._iterators[loader, MAIN]
        self._add(Kind.REQUESTED, MAIN, iterator, 0.0, 1.0)
        self.take_from_queue()
        self._add(Kind.RECEIVED, MAIN, iterator, SAMPLES, self.now_s, NAN)

    def take_from_queue(self) -> None:
        """Waits for a queue, and gets what is a batch."""
        since_s = self.now_s
        self.now_s += self._wait_s
        self._add(Kind.WAITED, MAIN, QUEUE, since_s, self.now_s, SAMPLES)

    def take_given(self, later_s: float = 0.0) -> None:
        """Gets at once a batch that a helper has given to a future, after a wait that nobody sees; so much
        later than that was given."""
        self.now_s += self._wait_s
        given_s = self.now_s
        self._add(Kind.GIVEN, HELPER, QUEUE, given_s)
        self.passes(later_s)
        self._add(Kind.WAITED, MAIN, QUEUE, self.now_s, given_s, SAMPLES)

    def exhaust(self, loader: int, thread: int = MAIN, *, ends_s: float = 0.0) -> None:
        """Requests a batch where there is none any more; `ends_s`: how long workers take to end meanwhile."""
        iterator = self._iterators.pop((loader, thread))
        self._add(Kind.REQUESTED, thread, iterator, NAN, 1.0)
        self.now_s += self._wait_s
        if ends_s:
            self.end_workers(iterator, ends_s)
        self._add(Kind.EXHAUSTED, thread, iterator, 0.0)

    def backward(self, thread: int = MAIN) -> None:
        self.work(Kind.BACKWARD, thread)

    def update(self, optimizer: int = OPTIMIZER, thread: int = MAIN) -> None:
        self.work(Kind.STEPPED, thread, optimizer)

    def passes(self, seconds: float) -> None:
        """Does something that nobody sees, for so long."""
        self.now_s += seconds

    def differentiates(self, seconds: float, thread: int = MAIN) -> None:
        """Does a backward pass that takes so long, from its beginning to its end."""
        begun_s = self.begins_pass(thread)
        self.now_s += seconds
        self.ends_pass(begun_s, thread)

    def begins_pass(self, thread: int = MAIN) -> float:
        """Begins a backward pass; returns when."""
        self._add(Kind.BACKWARD, thread, 0)
        return self.now_s

    def ends_pass(self, begun_s: float, thread: int = MAIN) -> None:
        """Ends a backward pass that began then."""
        self._add(Kind.DIFFERENTIATED, thread, 0, begun_s)

    def updates(self, seconds: float, optimizer: int = OPTIMIZER, *, since_s: float = NAN) -> None:
        """Steps an optimizer, which takes so long; `since_s`: when it began, if something was within."""
        if math.isnan(since_s):
            since_s = self.now_s
        self.now_s += seconds
        self._add(Kind.STEPPED, MAIN, optimizer, NAN, since_s)

    def train(self, n: int = 1, loader: int = TRAIN) -> None:
        """Does steps as most scripts do: a batch, a backward pass, an update."""
        for _ in range(n):
            self.fetch(loader)
            self.backward()
            self.update()

    def work(self, kind: Kind, thread: int = MAIN, number: int = 0) -> None:
        self.now_s += self._work_s
        self._add(kind, thread, number)

    def _add(self, kind: Kind, thread: int, number: int, *values: float) -> None:
        first, second, third = [*values, NAN, NAN, NAN][:3]
        event = Event(kind, self.now_s, thread, number, (first, second, third))
        self.log.events.append(event)
