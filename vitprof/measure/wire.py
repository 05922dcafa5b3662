"""What a job reports while it runs, the messages that are made of it, and their format on a pipe.

A job reports many small things a second; they are collected and sent about ten times a second. Over a pipe each
message is a frame: one byte for its kind, four for the payload's length (little endian), then the payload. That is JSON
in UTF-8 for notes; for steps, a line with the names of their columns as a JSON list, then each column's float64
figures. So a receiver reads the columns of another version too, and keeps those that it does not know.
"""

import json
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np

from vitprof.measure.step_columns import Columns, StepMarks, derive, gather
from vitprof.recording.columns import json_number

NOTE = b"N"
STEPS = b"S"
HEADER = struct.Struct("<cI")
MAX_PAYLOAD_BYTES = 64 << 20
SEND_EVERY_S = 0.1


@dataclass(frozen=True)
class Note:
    """A message that is not a step. `kind` is environment, gauges, stage, phase, notice, facts or end."""

    kind: str
    values: dict[str, Any]


Message = Note | Columns
"""What is sent: a note, or finished steps in order, by column."""


class Events(Protocol):
    """The receiver of what a job reports. Every method returns at once."""

    def environment(self, facts: dict[str, Any]) -> None:
        """Takes facts about what the job runs on."""

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        """Takes a function, called in any thread, that reads columns of `TelemetrySample` which only the job knows."""

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        """Notes what the job is doing now and how far along it is, 0..1 (NaN: unknown)."""

    def step(self, marks: StepMarks) -> None:
        """Takes one finished step, whose marks are times."""

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        """Notes a span of the run that is not a step, once it has ended: times on the host's clock."""

    def notice(self, line: str) -> None:
        """Takes a line to show with the run."""

    def facts(self, values: dict[str, Any]) -> None:
        """Takes figures that belong to the run as a whole; later values replace earlier ones."""


class EventBuffer:
    """A buffer that gives a job's events to another thread without a lock: a step costs the loop one append."""

    def __init__(self) -> None:
        self._marks: deque[StepMarks] = deque()
        self._columns: deque[Columns] = deque()
        self._notes: deque[Note] = deque()
        self._gauges: Callable[[], dict[str, float]] | None = None
        self.step: Callable[[StepMarks], None] = self._marks.append
        self.steps: Callable[[Columns], None] = self._columns.append

    def environment(self, facts: dict[str, Any]) -> None:
        self._notes.append(Note("environment", facts))

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        self._gauges = read

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        self._notes.append(
            Note("stage", {"name": name, "fraction": json_number(fraction), "message": message})
        )

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        self._notes.append(
            Note("phase", {"name": name, "t_start_s": t_start_s, "t_end_s": t_end_s})
        )

    def notice(self, line: str) -> None:
        self._notes.append(Note("notice", {"line": line}))

    def facts(self, values: dict[str, Any]) -> None:
        self._notes.append(Note("facts", {k: json_number(v) for k, v in values.items()}))

    def end(self, status: str, error: str = "") -> None:
        """Notes the end of the job, its last message. `status` is done, stopped or failed."""
        self._notes.append(Note("end", {"status": status, "error": error}))

    def drain(self) -> list[Message]:
        """Returns everything reported since the last call: steps first, then gauges, then notes in order."""
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        messages: list[Message] = [self._columns.popleft() for _ in range(len(self._columns))]
        if self._marks:
            messages.append(derive(gather(self._marks.popleft() for _ in range(len(self._marks)))))
        if self._gauges is not None:
            messages.append(Note("gauges", self._gauges()))
        return messages + notes


def write_message(stream: IO[bytes], message: Message) -> None:
    """Writes one frame; the caller flushes."""
    if isinstance(message, Note):
        finite = json.loads(json.dumps(message.values), parse_constant=lambda _: None)
        kind = NOTE
        payload = json.dumps([message.kind, finite]).encode()
    else:
        names = json.dumps(list(message)).encode()
        names += (
            b" " * (-(len(names) + 1) % 8) + b"\n"
        )  # so that the figures can be read where they are
        kind = STEPS
        payload = names + b"".join(column.tobytes() for column in message.values())
    stream.write(HEADER.pack(kind, len(payload)) + payload)


def read_messages(stream: IO[bytes]) -> Iterator[Message]:
    """Yields the messages of `stream` until it ends, or breaks off. Raises `ValueError` on bytes that are no frame."""
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        kind, length = HEADER.unpack(header)
        if kind not in (NOTE, STEPS) or length > MAX_PAYLOAD_BYTES:
            raise ValueError(f"not a frame of this protocol: {header!r}")
        payload = stream.read(length)
        if len(payload) < length:
            return
        yield _note(payload) if kind == NOTE else _columns(payload)


def _note(payload: bytes) -> Note:
    note = json.loads(payload)
    if not isinstance(note, list) or [type(part) for part in note] != [str, dict]:
        raise ValueError(f"not a note of this protocol: {payload[:60]!r}")
    return Note(*note)


def _columns(payload: bytes) -> Columns:
    begin = payload.index(b"\n") + 1
    names = json.loads(payload[:begin])
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"no names of columns: {payload[:60]!r}")
    return dict(
        zip(names, np.frombuffer(payload, offset=begin).reshape(len(names), -1), strict=True)
    )
