"""What a job reports while it runs, the messages that are made of it, and their format on a pipe.

A job reports many small things a second; they are collected and sent about ten times a second. Over
a pipe each message is a frame: one byte for its kind, four for the payload's length (little
endian), then the payload. For notes, the payload is JSON in UTF-8. For steps, it is a line with the
names of their columns as a JSON list, then each column's float64 figures. So a receiver reads the
columns of another version, too, and keeps those that it does not know.
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
"""Kind and length of the payload in front of it."""
MAX_PAYLOAD_BYTES = 64 << 20
"""A longer payload is taken for bytes that are no frame: reading it would take the memory it
claims."""
ALIGNMENT = 8
"""Figures begin at a multiple of this many bytes in the payload."""
SEND_EVERY_S = 0.1


@dataclass(frozen=True)
class Note:
    """A message that is not a step.

    `kind` is environment, gauges, stage, phase, notice, facts, rank or end.
    """

    kind: str
    values: dict[str, Any]


Message = Note | Columns
"""What is sent: a note, or finished steps in order, by column."""


class Events(Protocol):
    """The receiver of what a job reports. Every method returns at once."""

    def environment(self, facts: dict[str, Any]) -> None:
        """Takes facts about what the job runs on."""

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        """Takes the function that reads those columns of `TelemetrySample` that only the job knows.

        It is called now and then, in any thread.
        """

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
    """A buffer that takes a job's events from the training thread and gives them to another one,
    without a lock.

    `deque.append` and `popleft` are atomic, so a step costs the training loop one append.
    """

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

    def rank(self, rank: int, pid: int) -> None:
        """Notes the process in which another rank of the job trains."""
        self._notes.append(Note("rank", {"rank": rank, "pid": pid}))

    def gpu(self, uuid: str) -> None:
        """Notes the GPU on which another rank of the job trains."""
        self._notes.append(Note("gpu", {"uuid": uuid}))

    def end(self, status: str, error: str = "") -> None:
        """Notes the end of the job, its last message. `status` is done, stopped or failed."""
        self._notes.append(Note("end", {"status": status, "error": error}))

    def drain(self) -> list[Message]:
        """Returns everything reported since the last call: steps first, then gauges, then notes in
        order.
        """
        # As many as there are now: the training thread goes on appending.
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        messages: list[Message] = [self._columns.popleft() for _ in range(len(self._columns))]
        if self._marks:
            steps = (self._marks.popleft() for _ in range(len(self._marks)))
            messages.append(derive(gather(steps)))
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
        # Filled up with spaces, so that the receiver reads the figures where they are.
        missing = -(len(names) + 1) % ALIGNMENT
        line = names.ljust(len(names) + missing) + b"\n"
        kind = STEPS
        payload = line + b"".join(column.tobytes() for column in message.values())
    stream.write(HEADER.pack(kind, len(payload)) + payload)


def read_messages(stream: IO[bytes]) -> Iterator[Message]:
    """Yields the messages of `stream` until it ends.

    A frame cut short by the writer's death ends it, too.

    Raises `ValueError` on bytes that are not a frame.
    """
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        kind, length = HEADER.unpack(header)
        if kind not in (NOTE, STEPS) or length > MAX_PAYLOAD_BYTES:
            raise ValueError(f"not a frame of this protocol: {header!r}")
        payload = stream.read(length)
        if len(payload) < length:
            return
        if kind == NOTE:
            yield _note(payload)
        else:
            yield _columns(payload)


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
    figures = np.frombuffer(payload, offset=begin).reshape(len(names), -1)
    return dict(zip(names, figures, strict=True))
