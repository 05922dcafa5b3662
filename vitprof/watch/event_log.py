"""A file of events: what `vitprof watch --events` keeps, and `vitprof replay` reads.

Each line is a JSON list, so that people can read it, too: `["described", number, kind, facts]`, or
`[kind, time, thread, object, values...]` by the names of `events.Kind`. The first line is a JSON
object with the version of this format. Times are seconds since the first event. Threads have small
numbers. There is no sample and no name of a file in it, no loss, and no argument of the command.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from vitprof.errors import VitprofError
from vitprof.watch.core.log import EventLog
from vitprof.watch.events import FIELDS, Description, Event, Kind

FORMAT = 1
HEADER = "vitprof_events"
PRIVATE = ("made_where", "made_place", "made_digest", "environment", "hostname", "job", "files")
"""Facts that name files of the script or of its samples, the machine, or the job."""
MOMENTS = ("since_s", "start_s", "end_s", "reached_s")
"""Values that are times on the clock of the process."""
DIGITS = 6
"""Decimals of a time (s)."""


class EventLogError(VitprofError):
    """A file that is no event log, or one of another version."""


class EventLogWriter:
    """Writes the events of a process, as they arrive, to a file."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._began_s = math.nan
        self._threads: dict[int, int] = {}
        self._tensors: dict[float, int] = {}
        self._write({HEADER: FORMAT})

    def described(self, description: Description) -> None:
        facts = {name: value for name, value in description.facts.items() if name not in PRIVATE}
        self._write(["described", description.number, description.kind, facts])

    def event(self, event: Event) -> None:
        if math.isnan(self._began_s):
            self._began_s = event.at_s
        thread = self._threads.setdefault(event.thread, len(self._threads) + 1)
        values = [self._value(event, name) for name in FIELDS[event.kind]]
        at_s = round(event.at_s - self._began_s, DIGITS)
        self._write([event.kind.name.lower(), at_s, thread, event.object, *values])

    def _value(self, event: Event, name: str) -> float | None:
        value = float(event.value(name))
        if math.isnan(value) or name == "loss":
            return None
        if name == "first_tensor":
            return self._tensors.setdefault(value, len(self._tensors) + 1)
        if name in MOMENTS:
            value -= self._began_s
        return int(value) if value.is_integer() else round(value, DIGITS)

    def _write(self, line: object) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_event_log(path: Path) -> EventLog:
    """Returns the events in a file. Raises `EventLogError` in one line, with the line's number."""
    log = EventLog()
    try:
        with path.open(encoding="utf-8") as file:
            lines = _numbered(file)
            _check_header(path, next(lines, (1, None))[1])
            for number, line in lines:
                if line is CUT:
                    log.is_cut = True
                    break
                try:
                    _add(log, line)
                except (KeyError, TypeError, ValueError, IndexError) as error:
                    why = f"line {number} is no event"
                    raise EventLogError(f"{path} cannot be replayed: {why}") from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise EventLogError(f"{path} cannot be read: {why}") from error
    return log


CUT = object()
"""Stands for a line that a killed writer has begun."""


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yields the lines with their numbers: None for one that is no JSON, `CUT` for a last one
    without its end."""
    for number, text in enumerate(lines, 1):
        if not text.endswith("\n"):
            yield number, CUT
            return
        try:
            yield number, json.loads(text)
        except ValueError:
            yield number, None


def _check_header(path: Path, header: object) -> None:
    if not isinstance(header, dict) or HEADER not in header:
        raise EventLogError(
            f"{path} is no event log: vitprof watch --events FILE -- COMMAND writes one"
        )
    if header[HEADER] != FORMAT:
        version = header[HEADER]
        raise EventLogError(
            f"{path} has version {version} of the format, and this vitprof reads {FORMAT}: "
            "replay it with the vitprof that wrote it"
        )


def _add(log: EventLog, line: Any) -> None:
    name = line[0]
    if name == "described":
        _, number, kind, facts = line
        log.descriptions[number] = Description(int(number), str(kind), dict(facts))
        return
    kind = Kind[name.upper()]
    _, at_s, thread, number, *values = line
    # An earlier version noted fewer values of some kinds.
    if len(values) > len(FIELDS[kind]):
        raise ValueError(name)
    padded = [*values, None, None, None][:3]
    first, second, third = (math.nan if value is None else float(value) for value in padded)
    log.events.append(Event(kind, float(at_s), int(thread), int(number), (first, second, third)))
