"""The events of one process, as its core reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vitprof.watch.events import Description, Event, Kind, Row

WERE_DROPPED = "events were dropped, as nothing read them"
ENDS_WITHIN_A_LINE = "the file ends in the middle of a line"


@dataclass
class EventLog:
    """All that a process has recorded so far."""

    descriptions: dict[int, Description] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    """In the order in which they were recorded: those of one thread are in the order of time."""
    is_cut: bool = False
    """Whether its file ends in the middle of a line: whoever wrote it was killed, or it was copied
    in part."""

    def add(self, descriptions: Iterable[Description], rows: Iterable[Row]) -> None:
        """Adds what has arrived."""
        for description in descriptions:
            self.descriptions[description.number] = description
        self.events.extend(event_of(row) for row in rows)

    @property
    def why_incomplete(self) -> str:
        """Returns why some of what the process did is not in it; "" where nothing says so."""
        for description in self.descriptions.values():
            if description.kind == "failure" and "why" in description.facts:
                return str(description.facts["why"])
            if description.kind == "failure":
                return f"a hook of vitprof's failed ({description.facts.get('error')})"
        if any(event.kind is Kind.DROPPED for event in self.events):
            return WERE_DROPPED
        return ENDS_WITHIN_A_LINE if self.is_cut else ""

    @property
    def declares(self) -> bool:
        """Returns whether the script says which loaders train (`vitprof.watch`)."""
        return any(
            described.facts.get("declares") or described.facts.get("declared")
            for described in self.descriptions.values()
        )

    def is_declared(self, loader: int) -> bool:
        """Returns whether the script says that a loader trains."""
        described = self.descriptions.get(loader)
        return described is not None and bool(described.facts.get("declared"))

    def loader_of(self, iterator: int) -> int:
        """Returns the number of an iterator's loader; its own where that is not known."""
        described = self.descriptions.get(iterator)
        if described is None:
            return iterator
        return int(described.facts.get("loader", iterator))


def event_of(row: Sequence[float]) -> Event:
    """Returns the event in a row. Raises `ValueError` for a kind that this version does not know."""
    kind, at_s, thread, number, first, second, third = row
    return Event(Kind(int(kind)), at_s, int(thread), int(number), (first, second, third))


def row_of(event: Event) -> Row:
    """Returns an event as the row of numbers that it was."""
    first, second, third = event.values
    return (event.kind, event.at_s, event.thread, event.object, first, second, third)
