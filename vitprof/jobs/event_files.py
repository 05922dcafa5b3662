"""Keeps the events that a command's processes send, each in a file of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vitprof.measure.wire import Message, Note
from vitprof.watch.core.log import event_of
from vitprof.watch.event_log import EventLogWriter
from vitprof.watch.events import COLUMNS, Description


class EventFiles:
    """The event logs of a command: of the first process that fetches batches or trains in the file
    that was asked for, of each further one in a file beside it that ends with its process id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._naming = threading.Lock()
        self.written: list[Path] = []
        """The files so far, in the order in which their processes connected."""

    def keep(self, process: dict[str, Any], messages: Iterable[Message]) -> Iterator[Message]:
        """Writes one process's events, and yields its messages, until it ends. Raises `OSError`."""
        path = self._named(process)
        # Line by line: what a script that is killed has sent can be replayed.
        with path.open("w", encoding="utf-8", buffering=1) as file:
            writer = EventLogWriter(file)
            writer.described(Description(0, "process", process))
            for message in messages:
                if not isinstance(message, Note):
                    for row in zip(*(message[name].tolist() for name in COLUMNS), strict=True):
                        writer.event(event_of(row))
                elif message.kind == "described":
                    writer.described(Description(**message.values))
                yield message

    def _named(self, process: dict[str, Any]) -> Path:
        with self._naming:
            path = self._path
            if self.written:
                path = path.with_name(f"{path.name}.{process.get('pid')}")
            self.written.append(path)
            return path
