"""What one thread did: the batches that it fetched, and the work that it did, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vitprof.watch.core.log import EventLog
from vitprof.watch.events import NAN, Event, Kind

AT_ONCE_S = 0.05
"""The wait for a first batch that is requested this soon (s) after its iteration was begun includes
that: it starts the workers."""


@dataclass(frozen=True, slots=True)
class Stages:
    """How a batch was made: seconds, and moments on the monotonic clock."""

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
    """Whether a model was called without gradients, right after a batch that was requested so; None
    where nobody looked."""
    inside: list[Fetch] = field(default_factory=list)
    """The batches of loaders inside its own that came meanwhile."""
    exhausted: bool = False
    """Whether no batch came: the iteration is over."""
    made: Stages | None = None

    @property
    def stages(self) -> Stages | None:
        """Returns how the batch was made; by a loader inside its own, where that made one for it."""
        if self.made is None and len(self.inside) == 1:
            return self.inside[0].stages
        return self.made

    @property
    def wait_s(self) -> float:
        return self.received_s - self.since_s


@dataclass(frozen=True, slots=True)
class Work:
    """Something that a thread did with the batches it had."""

    kind: Kind
    """`BACKWARD`, `STEPPED`, `CHANGED`, `ENTERED`, `LEFT` or `FINISHED`."""
    at_s: float
    object: int
    """The number of the optimizer that stepped; 0 for all else."""
    loss: float = NAN


Entry = Fetch | Work
WORK = (Kind.BACKWARD, Kind.STEPPED, Kind.CHANGED, Kind.ENTERED, Kind.LEFT, Kind.FINISHED)


@dataclass(frozen=True, slots=True)
class Begun:
    """An iteration that was begun."""

    since_s: float
    until_s: float


def timeline(log: EventLog, events: Iterable[Event]) -> list[Entry]:
    """Returns what a thread did, from its own events."""
    return _Reader(log).entries(events)


class _Reader:
    """Reads the events of one thread. A request is complete with the batch, or without one."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._begun: dict[int, Begun] = {}
        """By iterator, until its first batch is requested."""
        self._pending: list[Fetch] = []
        """Requests without an answer, the innermost last: a loader may request batches of another."""
        self._last: Fetch | None = None
        """The batch that came last: how it was made follows."""
        self._made: tuple[float, float, float] = (NAN, NAN, NAN)
        self._polled: dict[int, float] = {}
        """By queue: when the first of several calls was made that returned no batch."""
        self._entries: list[Entry] = []

    def entries(self, events: Iterable[Event]) -> list[Entry]:
        readers: dict[Kind, Callable[[Event], None]] = {
            Kind.BEGUN: self._begin,
            Kind.REQUESTED: self._request,
            Kind.RECEIVED: self._receive,
            Kind.EXHAUSTED: self._exhaust,
            Kind.MADE: self._note_stages,
            Kind.MADE_BETWEEN: self._note_when_made,
            Kind.CALLED: self._note_call,
            Kind.SHUT_DOWN: self._wait_for_workers,
            Kind.WAITED: self._wait,
            **dict.fromkeys(WORK, self._work),
        }
        for event in events:
            read = readers.get(event.kind)
            if read is not None:
                read(event)
        return self._entries

    def _begin(self, event: Event) -> None:
        self._begun[event.object] = Begun(event.value("since_s"), event.at_s)

    def _request(self, event: Event) -> None:
        begun = self._begun.pop(event.object, None)
        since_s = event.at_s
        if begun is not None and event.at_s < begun.until_s + AT_ONCE_S:
            since_s = event.at_s - (begun.until_s - begun.since_s)
        fetch = Fetch(
            loader=self._log.loader_of(event.object),
            iterator=event.object,
            since_s=since_s,
            requested_s=event.at_s,
            received_s=NAN,
            gradients=event.value("gradients") == 1.0,
            first=begun is not None,
            n_ready=event.value("n_ready"),
        )
        if self._pending:
            self._pending[-1].inside.append(fetch)
        else:
            self._entries.append(fetch)
        self._pending.append(fetch)

    def _receive(self, event: Event) -> None:
        fetch = self._answered(event)
        if fetch is not None:
            fetch.samples = event.value("samples")
            fetch.values = event.value("values")
            fetch.tensor = event.value("first_tensor")

    def _exhaust(self, event: Event) -> None:
        fetch = self._answered(event)
        if fetch is not None:
            fetch.exhausted = True

    def _answered(self, event: Event) -> Fetch | None:
        """Returns the request that an event answers; None where it was not seen."""
        while self._pending:
            fetch = self._pending.pop()
            if fetch.iterator == event.object:
                fetch.received_s = event.at_s
                self._last = fetch
                return fetch
        return None

    def _note_stages(self, event: Event) -> None:
        self._made = event.values

    def _note_when_made(self, event: Event) -> None:
        if self._last is not None:
            self._last.made = Stages(*self._made, *event.values)

    def _wait_for_workers(self, event: Event) -> None:
        """Notes the end of an iterator's workers: until then the script has not got the batch that came
        last, if it has done nothing since."""
        last = self._last
        if last is not None and last.iterator == event.object and self._entries[-1] is last:
            last.received_s = event.at_s

    def _note_call(self, event: Event) -> None:
        if self._last is not None:
            self._last.evaluated = event.value("gradients") == 0.0

    def _work(self, event: Event) -> None:
        self._polled.clear()
        loss = event.value("loss") if event.kind is Kind.BACKWARD else NAN
        self._entries.append(Work(event.kind, event.at_s, event.object, loss))

    def _wait(self, event: Event) -> None:
        # Within `next()` it is PyTorch's own queue.
        if self._pending:
            return
        since_s = event.value("since_s")
        if math.isnan(event.value("first_tensor")):
            # No batch, as at a time limit: the wait for one goes on, unless work is in between.
            self._polled.setdefault(event.object, since_s)
            return
        samples = event.value("samples")
        since_s = self._polled.pop(event.object, since_s)
        self._entries.append(
            Fetch(
                loader=event.object,
                iterator=event.object,
                since_s=since_s,
                requested_s=since_s,
                received_s=event.at_s,
                gradients=True,
                first=False,
                samples=0.0 if math.isnan(samples) else samples,
                tensor=event.value("first_tensor"),
            )
        )
