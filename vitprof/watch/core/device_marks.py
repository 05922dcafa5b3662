"""The marks in the work of a device, and when it passed them, as a core finds them again: by the thread,
the place, and the time at which they were set."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vitprof.watch.events import Event, Kind, MarkedPoint


@dataclass(slots=True)
class Mark:
    """A point in a stream, after all that the thread had launched there."""

    place: MarkedPoint
    at_s: float
    """When the thread set it (s)."""
    stream: float
    """The number of the stream."""
    reached_s: float = math.nan
    """When the device passed it (s, the host's clock); NaN while that is not known."""
    loss: float = math.nan
    """The loss that was copied to the host before it."""

    @property
    def is_reached(self) -> bool:
        return not math.isnan(self.reached_s)


class MarksOfThread:
    """The marks that one thread set, in the order of time."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._times: list[float] = []

    def add(self, mark: Mark) -> None:
        self._marks.append(mark)
        self._times.append(mark.at_s)

    def since(self, since_s: float) -> Iterator[Mark]:
        """Yields the marks that were set from then on."""
        return itertools.islice(self._marks, bisect.bisect_left(self._times, since_s), None)

    def between(self, since_s: float, until_s: float) -> Iterator[Mark]:
        """Yields the marks that were set from `since_s` on, and before `until_s`."""
        return itertools.takewhile(lambda mark: mark.at_s < until_s, self.since(since_s))

    def first(self, place: MarkedPoint, since_s: float, until_s: float = math.inf) -> Mark | None:
        """Returns the first mark of one place among these; None without any."""
        found = (mark for mark in self.between(since_s, until_s) if mark.place is place)
        return next(found, None)

    def until(self, until_s: float) -> Iterator[Mark]:
        """Yields the marks that were set by then, the last one first."""
        for i in range(bisect.bisect_right(self._times, until_s) - 1, -1, -1):
            yield self._marks[i]

    def last(self, place: MarkedPoint, until_s: float) -> Mark | None:
        """Returns the last mark of one place that was set by then."""
        return next((mark for mark in self.until(until_s) if mark.place is place), None)

    def forget(self, before_s: float) -> None:
        """Drops the marks that were set earlier."""
        kept_from = bisect.bisect_left(self._times, before_s)
        del self._marks[:kept_from]
        del self._times[:kept_from]


class MarkTable:
    """All marks of a process so far."""

    def __init__(self) -> None:
        self._of_threads: dict[int, MarksOfThread] = {}
        self._pending: dict[float, Mark] = {}
        """By token, until the device has passed it."""
        self.device: int | None = None
        """The number of the device that trains; None where none is timed."""
        self.copied_in = set[float]()
        """The streams in which batches were copied."""

    def add_events(self, events: Iterable[Event]) -> None:
        """Adds the marks among events that have arrived."""
        for event in events:
            if event.kind is Kind.MARKED:
                place = MarkedPoint(int(event.value("place")))
                mark = Mark(place, event.at_s, event.value("stream"))
                self.device = event.object
                self._pending[event.value("token")] = mark
                self.of_thread(event.thread).add(mark)
                if place is MarkedPoint.COPIED:
                    self.copied_in.add(mark.stream)
            elif event.kind is Kind.REACHED:
                passed = self._pending.pop(event.value("token"), None)
                if passed is not None:
                    passed.reached_s = event.value("reached_s")
                    passed.loss = event.value("loss")

    def of_thread(self, thread: int) -> MarksOfThread:
        """Returns the marks that a thread set."""
        return self._of_threads.setdefault(thread, MarksOfThread())

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return self.device is not None
