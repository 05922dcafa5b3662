"""What each thread did: the batches that it fetched, and the work that it did, in order.

Each event is read once, as it arrives: a busy loop has ten thousand of them in a second. So a reader
of a kind gets the numbers of its event as they came, by the names that `events.FIELDS` gives them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vitprof.watch.core.log import EventLog
from vitprof.watch.events import NAN, Kind, Row

AT_ONCE_S = 0.05
"""The wait for a first batch that is requested this soon (s) after its iteration was begun includes
that: it starts the workers."""
RIGHT_AFTER_S = 0.001
"""An iterator that is freed so soon (s) after its batch has come is freed before the script has that."""
MOST_DRAWN = 1000
"""Batches whose indices workers are given as an iteration begins: the last ones are kept."""
MOST_ASKED = 1000
"""Iterators of which it is known when they were asked last."""
MOST_NESTED = 16
"""Backward passes within each other whose ends are waited for. One that fails has none."""
MOST_LOOKS = 200
"""Batches of which it is known that a model was called with them: the last ones are kept."""


class Stages(NamedTuple):
    """How a batch was made: seconds, and moments on the monotonic clock.

    A named tuple, as there is one for each batch: it is made in half the time of a frozen dataclass,
    and many become an array at once.
    """

    dataset_s: float
    transform_s: float
    collate_s: float
    start_s: float
    end_s: float
    worker: float
    """NaN where none made it."""


@dataclass(slots=True)
class Fetch:
    """A batch that a thread requested, and got."""

    loader: int
    """The number of the loader, or of the queue, pool or future."""
    iterator: int
    since_s: float
    """When it was requested (s); for an iteration's first batch, when that was begun."""
    requested_s: float
    received_s: float
    """NaN while it is under way."""
    gradients: bool
    """Whether they were on as it was requested."""
    first: bool
    """Whether it is the first of its iteration."""
    n_ready: float = NAN
    """Batches that workers had ready as it was requested; NaN without workers."""
    samples: float = 0.0
    values: float = NAN
    tensor: float = NAN
    """A number by which the batch is known again in another thread."""
    evaluated: bool | None = None
    """Whether a model was called without gradients, right after a batch that was requested so, and not
    with gradients after that, with some of the same samples; None where nobody looked."""
    inside: tuple[Fetch, ...] = ()
    """The batches of loaders inside its own that came meanwhile."""
    is_from: Fetch | None = None
    """The batch of a loader inside its own that it is."""
    held_up_s: float = 0.0
    """How long vitprof itself held up the script as it was requested: part of no step."""
    block: int = 0
    """The block of steps that its step belongs to: odd where batches were served again."""
    is_settling: bool = False
    """Whether its step does not count there."""
    exhausted: bool = False
    """Whether no batch came: the iteration is over."""
    unseen_s: float = 0.0
    """How long before the request the thread may have waited for it: from its last work until another thread had
    made the batch, which was then there at once."""
    made: Stages | None = None
    sampler_s: float = 0.0
    """What the sampler took meanwhile, where that is a while. With workers it is for a later batch, and comes
    after this one was made."""
    drawn_s: float = 0.0
    """What the sampler took before, as the iteration was begun: workers are given the indices of their first batches
    then."""
    ended_s: float = 0.0
    """How long the end of its iterator's workers took, before the script had it."""
    beside: bool = False
    """Whether its iteration was begun with that of the batch before, as by `zip(loader, loader)`."""
    left_s: float = 0.0
    """How long the workers took to end, right before this request, of an iteration that was left early: that is no
    part of a wait."""
    slow: tuple[tuple[int, float], ...] = ()
    """Its slow samples: the index of each, and the seconds that the dataset took for it."""

    @property
    def slow_samples(self) -> tuple[tuple[int, float], ...]:
        """Returns its slow samples; of a batch from a loader inside its own, those that were noted there."""
        return self.slow if self.is_from is None else self.slow + self.is_from.slow_samples

    @property
    def stages(self) -> Stages | None:
        """Returns how the batch was made; by a loader inside its own, where that made it."""
        if self.made is None and self.is_from is not None:
            return self.is_from.stages
        return self.made

    @property
    def iterator_s(self) -> float:
        """Returns how much of the wait the iterator took to begin, until a batch was begun, and to end."""
        stages = self.stages
        if stages is None:
            return self.ended_s
        begun_s = 0.0
        if self.first:
            is_by_loop = math.isnan(stages.worker)
            sampler_s = self.drawn_s + (self.sampler_s if is_by_loop else 0.0)
            begun_s = max(0.0, min(stages.start_s, self.received_s) - self.since_s - sampler_s)
        return begun_s + self.ended_s

    @property
    def indices_s(self) -> float:
        """Returns how much of the wait the sampler took."""
        return self.drawn_s + self.sampler_s

    @property
    def after_made_s(self) -> float:
        """Returns how much of the wait after the batch was made is no part of handing it over."""
        if self.exhausted:
            return 0.0
        stages = self.stages
        is_by_worker = stages is not None and not math.isnan(stages.worker)
        return self.ended_s + (self.sampler_s if is_by_worker else 0.0)

    @property
    def hand_over_s(self) -> float:
        """Returns how much of the wait was for a batch that was made by then; 0 where it is not known how that was
        made."""
        stages = self.stages
        if stages is None:
            return 0.0
        return max(0.0, self.received_s - max(stages.end_s, self.since_s) - self.after_made_s)

    @property
    def came_s(self) -> float:
        """Returns when the script requested it."""
        return self.since_s - self.held_up_s

    @property
    def until_s(self) -> float:
        """Returns when the wait for it was over, as far as that was seen."""
        return self.requested_s if math.isnan(self.received_s) else self.received_s

    @property
    def wait_s(self) -> float:
        return self.received_s - self.since_s


@dataclass(slots=True)
class Work:
    """Something that a thread did with the batches it had.

    Nobody changes it, but for the end of a backward pass. To freeze it would take four times as long as
    to make it, and there are two for each step.
    """

    kind: Kind
    """`BACKWARD`, `STEPPED`, `CHANGED`, `ENTERED`, `LEFT`, `PAUSED` or `FINISHED`."""
    at_s: float
    object: int
    """The number of the optimizer that stepped; 0 for all else."""
    loss: float = NAN
    since_s: float = NAN
    """When the optimizer began to step; since when parameters may have changed, where they have; NaN for all else."""
    until_s: float = NAN
    """When the backward pass had ended, once that is known; NaN for all else."""


TimelineEntry = Fetch | Work
BACKWARD, STEPPED = Kind.BACKWARD, Kind.STEPPED
"""Looked up once: of an enum's class that takes as long as to make a small object."""
KINDS = frozenset(map(int, Kind))


@dataclass(frozen=True, slots=True)
class Begun:
    """An iteration that was begun; or several, one right after another, as `zip` begins them: the first
    request of any waits for all of them. So it does for the end of the workers of an iterator whose place one
    has taken: `batches = iter(loader)` begins the new one, and then drops the one before."""

    since_s: float
    until_s: float
    drawn_s: float = 0.0
    """For how long samplers gave indices meanwhile."""
    is_shared: bool = False
    """Whether the first request of another one has waited for it."""

    def is_followed_by(self, since_s: float) -> bool:
        """Returns whether what begins then comes right after it."""
        return self.until_s <= since_s < self.until_s + AT_ONCE_S


class AskedIterators:
    """Which iterators a thread asks one after the other."""

    def __init__(self) -> None:
        self.iterator = 0.0
        """The one that was asked last."""
        self._n = 0
        self._at: dict[float, int] = {}
        """By iterator: the number of its last request."""
        self._before = 0
        """The number of the request before the last one, of the same iterator."""

    def ask(self, iterator: float) -> None:
        if len(self._at) >= MOST_ASKED:
            self._at.clear()
        self.iterator = iterator
        self._n += 1
        self._before = self._at.get(iterator, self._n)
        self._at[iterator] = self._n

    def was_between(self, iterator: float) -> bool:
        """Returns whether an iterator was asked between the last two requests of the one that was asked last."""
        return self._at.get(iterator, 0) > self._before


class Beginnings:
    """The iterations that a thread has begun, until the first batch of each is requested."""

    def __init__(self) -> None:
        self._begun: dict[float, Begun] = {}
        """By iterator."""
        self._drawn: deque[tuple[float, float]] = deque(maxlen=MOST_DRAWN)
        """When a sampler began to give the indices of a batch that was not requested, and for how long it took."""

    def draw(self, since_s: float, took_s: float) -> None:
        """Notes that a sampler has given indices: workers get those of their first batches as an iteration begins."""
        self._drawn.append((since_s, took_s))

    def add(self, iterator: float, since_s: float, until_s: float) -> None:
        """Adds an iteration that was begun in this time."""
        drawn_s = sum(took_s for drawn_since_s, took_s in self._drawn if drawn_since_s >= since_s)
        self._drawn.clear()
        begun = Begun(since_s, until_s, drawn_s)
        for other, before in list(self._begun.items()):
            if before.is_followed_by(since_s):
                begun = Begun(before.since_s, until_s, before.drawn_s + drawn_s)
                self._begun[other] = begun
        self._begun[iterator] = begun

    def take(self, iterator: float) -> Begun | None:
        """Removes and returns the beginning of an iteration; None where its first batch was requested before."""
        return self._begun.pop(iterator, None)

    def forget(self, begun: Begun, at_s: float) -> None:
        """Lets no other wait include what one has included."""
        for other, of_other in self._begun.items():
            if of_other is begun:
                self._begun[other] = Begun(at_s, at_s, is_shared=True)

    def delay(self, since_s: float, until_s: float) -> bool:
        """Lets iterations that were begun right before go on to begin, and returns whether there is one."""
        delayed = False
        for other, before in list(self._begun.items()):
            if before.is_followed_by(since_s):
                self._begun[other] = Begun(before.since_s, until_s, before.drawn_s)
                delayed = True
        return delayed


MOST_AHEAD = 64
"""If so many batches of a loader are taken ahead by another one, which one became which is not known."""


class Inside:
    """Batches of loaders inside another one, in their order: the n-th batch inside is the n-th one
    outside, unless batches are put together anew. Where more are left each time, or fewer and then more
    follow, they are."""

    def __init__(self) -> None:
        self._fetches: deque[Fetch] = deque()
        self._n_inside = -1
        """Batches inside that were not outside yet, as one came out last."""
        self._drained = False
        """Whether they became fewer."""
        self._is_known = True

    def add(self, fetch: Fetch) -> None:
        """Adds a batch inside."""
        self._fetches.append(fetch)
        self._is_known &= not self._drained

    def take(self) -> Fetch | None:
        """Returns the batch inside that comes out; None where that is not known."""
        n_inside = len(self._fetches) - 1
        self._is_known &= 0 <= n_inside < MOST_AHEAD and not 0 <= self._n_inside < n_inside
        if not self._is_known:
            self._fetches.clear()
            return None
        self._drained |= n_inside < self._n_inside
        self._n_inside = n_inside
        return self._fetches.popleft()


class Threads:
    """What the threads of a process did, as far as their events were read."""

    def __init__(self, log: EventLog) -> None:
        """`log`: has the descriptions of what events are about."""
        self._log = log
        self.by_number: dict[int, Thread] = {}
        self.iterations = Iterations()
        self._given = Given()
        self.were_dropped = False
        """Whether events were, because nothing read them."""

    def read(self, rows: Iterable[Row]) -> None:
        """Reads events. Raises `ValueError` for a kind that this version does not know."""
        last_thread = NAN
        readers: Readers = {}
        for kind, at_s, thread, number, first, second, third in rows:
            if thread != last_thread:
                last_thread = thread
                readers = self._thread(int(thread)).readers
            read = readers.get(kind)
            if read is not None:
                read(at_s, number, first, second, third)
            elif kind == Kind.DROPPED:
                self.were_dropped = True
            elif kind not in KINDS:
                raise ValueError(kind)

    def _thread(self, number: int) -> Thread:
        thread = self.by_number.get(number)
        if thread is None:
            thread = self.by_number[number] = Thread(self._log, self.iterations, self._given)
        return thread


class Iterations:
    """The iterations over each loader, in all threads."""

    def __init__(self) -> None:
        self._latest: dict[float, float] = {}
        """By loader: the iterator that was begun last."""
        self.at_once: set[int] = set()
        """Loaders of which an iterator was asked after another one had been begun, as of `zip(loader,
        loader)`: several were open at once."""

    def begin(self, iterator: float, loader: float) -> None:
        self._latest[loader] = iterator

    def ask(self, iterator: float, loader: int) -> None:
        """Notes that an iterator is asked that is not the one that its thread has asked before."""
        if self._latest.get(loader, iterator) != iterator:
            self.at_once.add(loader)


WAITS_BY_CALL_S = 0.001
"""A call that has taken so long (s) to return a batch is the one by which the thread waits."""
MOST_GIVEN = 256
"""Batches of which it is known when a thread gave them to others: the last ones."""


class Given:
    """When threads gave batches to others, by queue or future."""

    def __init__(self) -> None:
        self._at_s: dict[tuple[float, float], float] = {}

    def add(self, at_s: float, source: float, tensor: float) -> None:
        if len(self._at_s) >= MOST_GIVEN:
            del self._at_s[next(iter(self._at_s))]
        self._at_s[source, tensor] = at_s

    def take(self, source: float, tensor: float) -> float:
        """Returns when it was given; NaN where that is not known."""
        return self._at_s.pop((source, tensor), NAN)


Reader = Callable[[float, float, float, float, float], None]
"""Reads an event of one kind: its time, its object, and three values."""
Readers = dict[float, Reader]


class Thread:
    """What one thread did. A request is complete with the batch, or without one."""

    def __init__(self, log: EventLog, iterations: Iterations, given: Given) -> None:
        self._log = log
        self._iterations = iterations
        self._given = given
        self._entries: list[TimelineEntry] = []
        self._latest: TimelineEntry | None = None
        """The last entry, whoever has taken it."""
        self.first_s: dict[Kind, float] = {}
        """When it did each kind of work for the first time."""
        self.changed_since_s = -math.inf
        """Since when backward passes are known to change parameters: gradients of a validation change
        none."""
        self.n_passes = 0
        """Its backward passes."""
        self.n_stepped = 0
        """The steps of optimizers in it."""
        self.n_left = 0
        """The steps that the script marks in it."""
        self.fetches = False
        """Whether it has requested a batch, or got one from a queue."""
        self.looked_at: deque[Fetch] = deque(maxlen=MOST_LOOKS)
        """Batches of which it is known whether a model was called with them without gradients."""
        self.declared: set[int] = set()
        """The loaders that the script says it trains on, and that this thread has asked to train."""
        self._is_declared = False
        """Whether the loader that was asked last is one."""
        self._inside: dict[int, Inside] = {}
        """By the iterator outside."""
        self._begun = Beginnings()
        self._asked = AskedIterators()
        self._loader = 0
        """That of the iterator that was asked last."""
        self._pending: list[Fetch] = []
        """Requests without an answer, the innermost last: a loader may request batches of another."""
        self._last: Fetch | None = None
        """The batch that came last: how it was made follows."""
        self._waited_until_s = -math.inf
        """When the last wait was over: no moment counts as two of them. The next one may have begun before work was
        seen, as where an iterator is made before the update; then that step is so much shorter."""
        self._freed: Fetch | None = None
        """What was freed of an iteration that was left early, since the last entry."""
        self._left_s = 0.0
        """How long workers of such an iteration took to end, since the last entry."""
        self._made: tuple[float, float, float] = (NAN, NAN, NAN)
        self._of_loaders: set[float] = set()
        """The queues that loaders fetch from."""
        self._waits_by_call = False
        """Whether it has waited for a batch of a queue or future within the call that returned it."""
        self._polled: dict[float, float] = {}
        """By queue: when the first of several calls was made that returned no batch."""
        self._differentiating: deque[Work] = deque(maxlen=MOST_NESTED)
        """Backward passes whose end was not seen, the innermost last."""
        self.readers: Readers = {
            Kind.BEGUN: self._begin,
            Kind.REQUESTED: self._request,
            Kind.RECEIVED: self._receive,
            Kind.EXHAUSTED: self._exhaust,
            Kind.MADE: self._note_stages,
            Kind.MADE_BETWEEN: self._note_when_made,
            Kind.SLOW_SAMPLE: self._note_slow_sample,
            Kind.CALLED: self._note_call,
            Kind.SHUT_DOWN: self._wait_for_workers,
            Kind.SAMPLED: self._note_sampler,
            Kind.FREED: self._note_freeing,
            Kind.WAITED: self._wait,
            Kind.GIVEN: self._give,
            Kind.BACKWARD: self._differentiate,
            Kind.DIFFERENTIATED: self._note_end_of_pass,
            Kind.STEPPED: self._step,
            Kind.OWN: self._hold_up,
            Kind.BLOCK: self._note_block,
            Kind.CHANGED: self._change,
            Kind.PAUSED: lambda at_s, *_: self._work(Work(Kind.PAUSED, at_s, 0)),
            Kind.ENTERED: lambda at_s, *_: self._work(Work(Kind.ENTERED, at_s, 0)),
            Kind.LEFT: self._leave,
            Kind.FINISHED: lambda at_s, *_: self._work(Work(Kind.FINISHED, at_s, 0)),
        }

    def take(self) -> list[TimelineEntry]:
        """Removes and returns what it did since the last call. A request among it may still be pending."""
        entries = self._entries
        self._entries = []
        return entries

    def keep_last(self, most: int) -> None:
        """Drops what it did before its last entries."""
        del self._entries[:-most]

    @property
    def n_kept(self) -> int:
        """Returns how many entries were not taken."""
        return len(self._entries)

    def _add(self, entry: TimelineEntry) -> None:
        freed = self._freed
        self._freed = None
        if isinstance(entry, Fetch):
            if freed is not None:
                self._entries.append(freed)
            entry.left_s = self._left_s
        self._left_s = 0.0
        self._latest = entry
        self._entries.append(entry)

    def _begin(self, at_s: float, iterator: float, loader: float, since_s: float, _: float) -> None:
        self._iterations.begin(iterator, loader)
        self._begun.add(iterator, since_s, at_s)

    def _request(
        self, at_s: float, iterator: float, n_ready: float, gradients: float, _: float
    ) -> None:
        if iterator != self._asked.iterator:
            self._loader = self._log.loader_of(int(iterator))
            self._is_declared = self._log.is_declared(self._loader)
            self._iterations.ask(iterator, self._loader)
        since_s = at_s
        drawn_s = 0.0
        begun = self._begun.take(iterator)
        if begun is not None and at_s < begun.until_s + AT_ONCE_S:
            since_s = max(at_s - (begun.until_s - begun.since_s), self._waited_until_s)
            drawn_s = min(begun.drawn_s, at_s - since_s)
            self._begun.forget(begun, at_s)
        is_first = begun is not None
        # By position: names would take a quarter of the time of reading an event.
        fetch = Fetch(
            self._loader, int(iterator), since_s, at_s, NAN, gradients == 1.0, is_first, n_ready
        )
        fetch.drawn_s = drawn_s
        fetch.beside = begun is not None and begun.is_shared
        self._asked.ask(iterator)
        self.fetches = True
        if self._is_declared and gradients:
            self.declared.add(self._loader)
        if self._pending:
            self._pending[-1].inside += (fetch,)
        else:
            self._add(fetch)
        self._pending.append(fetch)

    def _receive(
        self, at_s: float, iterator: float, samples: float, first_tensor: float, values: float
    ) -> None:
        fetch = self._answered(at_s, iterator)
        if fetch is not None:
            fetch.samples = samples
            fetch.tensor = first_tensor
            fetch.values = values
            if self._pending:
                outside = self._inside.setdefault(self._pending[-1].iterator, Inside())
                outside.add(fetch)
            if fetch.iterator in self._inside:
                fetch.is_from = self._inside[fetch.iterator].take()

    def _exhaust(self, at_s: float, iterator: float, *_: float) -> None:
        fetch = self._answered(at_s, iterator)
        if fetch is not None:
            fetch.exhausted = True

    def _answered(self, at_s: float, iterator: float) -> Fetch | None:
        """Returns the request that an event answers; None where it was not seen."""
        while self._pending:
            fetch = self._pending.pop()
            if fetch.iterator == iterator:
                fetch.received_s = at_s
                self._last = fetch
                self._waited_until_s = at_s
                return fetch
        return None

    def _hold_up(self, at_s: float, _: float, since_s: float, *__: float) -> None:
        if self._pending:
            fetch = self._pending[-1]
            fetch.held_up_s += at_s - since_s
            fetch.since_s += at_s - since_s
            fetch.requested_s += at_s - since_s

    def _note_block(self, _: float, __: float, block: float, settles: float, ___: float) -> None:
        if self._pending:
            self._pending[-1].block = int(block)
            self._pending[-1].is_settling = settles == 1.0

    def _note_stages(
        self, _: float, iterator: float, dataset_s: float, transform_s: float, collate_s: float
    ) -> None:
        self._made = (dataset_s, transform_s, collate_s)

    def _note_when_made(
        self, _: float, iterator: float, start_s: float, end_s: float, worker: float
    ) -> None:
        if self._last is not None:
            self._last.made = Stages(*self._made, start_s, end_s, worker)

    def _note_slow_sample(
        self, _: float, __: float, index: float, took_s: float, ___: float
    ) -> None:
        if self._last is not None:
            self._last.slow += ((int(index), took_s),)

    def _wait_for_workers(self, at_s: float, iterator: float, since_s: float, *_: float) -> None:
        """Notes the end of an iterator's workers: until then the script has not got the batch that came
        last, if it has done nothing since."""
        if self._pending and self._pending[-1].iterator == iterator:
            # The iteration is over: that request waits for it.
            self._pending[-1].ended_s += at_s - since_s
            return
        last = self._last_of(iterator) or self._exhausted_before(iterator, since_s)
        if last is not None:
            self._delay(last, at_s)
        elif not self._begun.delay(since_s, at_s):
            self._left_s += at_s - since_s

    def _note_freeing(self, at_s: float, iterator: float, since_s: float, *_: float) -> None:
        """Notes that an iterator was freed, with the indices that its sampler had drawn, as of a loop that is left
        early. It has no last request in which that would be: the next wait has it, unless the thread works first."""
        if self._pending:
            return
        last = self._last_of(iterator)
        if last is not None and since_s >= last.received_s + RIGHT_AFTER_S:
            last = None
        last = last or self._exhausted_before(iterator, since_s)
        if last is not None:
            self._delay(last, at_s)
        elif not self._begun.delay(since_s, at_s):
            self._freed = self._freed_in(int(iterator), since_s, at_s)
            self._waited_until_s = at_s

    def _freed_in(self, iterator: int, since_s: float, until_s: float) -> Fetch:
        """Returns a wait without a batch, which is as long as all that was freed since the last entry."""
        if self._freed is not None:
            # What the thread did between the two is no part of either.
            since_s -= self._freed.wait_s
        return Fetch(
            loader=self._log.loader_of(iterator),
            iterator=iterator,
            since_s=since_s,
            requested_s=since_s,
            received_s=until_s,
            gradients=True,
            first=False,
            exhausted=True,
            sampler_s=until_s - since_s,
        )

    def _last_of(self, iterator: float) -> Fetch | None:
        """Returns the batch that came last, if it is of this iterator and the thread has done nothing since."""
        last = self._last
        if last is None or last.iterator != iterator:
            return None
        return last if self._latest is last and self._freed is None else None

    def _exhausted_before(self, iterator: float, since_s: float) -> Fetch | None:
        """Returns the last request if it found its iteration over right before, where an iterator was asked in turn
        with that one: `zip` drops both."""
        last = self._last
        if last is None or not last.exhausted or self._latest is not last:
            return None
        if self._freed is not None or since_s >= last.received_s + RIGHT_AFTER_S:
            return None
        return last if self._asked.was_between(iterator) else None

    def _delay(self, fetch: Fetch, until_s: float) -> None:
        """Lets a wait go on until its iterator has ended, as with `next(iter(loader))`."""
        fetch.ended_s += until_s - fetch.received_s
        fetch.received_s = until_s
        self._waited_until_s = until_s
        self._left_s = 0.0

    def _note_sampler(self, at_s: float, iterator: float, since_s: float, *_: float) -> None:
        if self._pending and self._pending[-1].iterator == iterator:
            self._pending[-1].sampler_s += at_s - since_s
        else:
            self._begun.draw(since_s, at_s - since_s)

    def _note_call(self, _: float, number: float, gradients: float, *__: float) -> None:
        """Notes a call of a model with the last batch: a second one, with gradients, trains on what the
        first one has scored."""
        last = self._last
        if last is not None:
            if last.evaluated is None:
                self.looked_at.append(last)
            last.evaluated = gradients == 0.0

    def _differentiate(self, at_s: float, _: float, loss: float, *__: float) -> None:
        self.n_passes += 1
        work = Work(BACKWARD, at_s, 0, loss)
        self._differentiating.append(work)
        self._work(work)

    def _note_end_of_pass(self, at_s: float, _: float, since_s: float, *__: float) -> None:
        """Notes the end of the pass that began then. Those that began after it have failed."""
        passes = self._differentiating
        while passes and passes[-1].at_s >= since_s:
            ended = passes.pop()
            if ended.at_s == since_s:
                ended.until_s = at_s

    def _leave(self, at_s: float, *_: float) -> None:
        self.n_left += 1
        self._work(Work(Kind.LEFT, at_s, 0))

    def _step(self, at_s: float, optimizer: float, _: float, since_s: float, *__: float) -> None:
        self.n_stepped += 1
        self._work(Work(STEPPED, at_s, int(optimizer), since_s=since_s))

    def _change(self, at_s: float, _: float, since_s: float, *__: float) -> None:
        self._work(Work(Kind.CHANGED, at_s, 0, since_s=since_s))

    def _work(self, work: Work) -> None:
        if self._polled:
            self._polled.clear()
        if work.kind not in self.first_s:
            self.first_s[work.kind] = work.at_s
            if work.kind is Kind.CHANGED and not math.isnan(work.since_s):
                self.changed_since_s = work.since_s
        self._add(work)

    def _wait(
        self, at_s: float, queue: float, since_s: float, first_tensor: float, samples: float
    ) -> None:
        # Within `next()` it is PyTorch's own queue; it empties that as an iteration begins, too.
        if self._pending:
            self._of_loaders.add(queue)
            return
        if queue in self._of_loaders:
            return
        if math.isnan(first_tensor):
            # No batch, as at a time limit: the wait for one goes on, unless work is in between.
            self._polled.setdefault(queue, since_s)
            return
        given_s = self._given.take(queue, first_tensor)
        self._waits_by_call |= queue in self._polled or at_s - since_s > WAITS_BY_CALL_S
        unseen_s = 0.0 if self._waits_by_call else self._unseen_s(since_s, given_s)
        since_s = max(self._polled.pop(queue, since_s), self._waited_until_s)
        self._waited_until_s = at_s
        fetch = Fetch(
            loader=int(queue),
            iterator=int(queue),
            since_s=since_s,
            requested_s=since_s,
            received_s=at_s,
            gradients=True,
            first=False,
            samples=0.0 if math.isnan(samples) else samples,
            tensor=first_tensor,
            unseen_s=unseen_s,
        )
        self.fetches = True
        self._add(fetch)

    def _give(self, at_s: float, source: float, first_tensor: float, *_: float) -> None:
        self._given.add(at_s, source, first_tensor)

    def _unseen_s(self, requested_s: float, given_s: float) -> float:
        """Returns for how long the thread may have waited for a batch before it requested that: not where it
        was given later, or before the thread had ended its last work."""
        last = self._latest
        if last is None or not given_s <= requested_s:
            return 0.0
        until_s = last.until_s
        if math.isnan(until_s):
            until_s = at_s(last)
        return max(0.0, given_s - until_s)


def at_s(entry: TimelineEntry) -> float:
    """Returns when an entry happened, or began."""
    return entry.requested_s if isinstance(entry, Fetch) else entry.at_s


def before_pending(entries: Sequence[TimelineEntry]) -> int:
    """Returns how many entries come before a request that is pending: it may get a batch, or find the
    iteration over."""
    for number in reversed(range(len(entries))):
        entry = entries[number]
        if isinstance(entry, Fetch):
            return number if math.isnan(entry.received_s) else len(entries)
    return len(entries)
