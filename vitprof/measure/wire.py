"""The messages from a job to its runner, and their format on a pipe.

A job reports many small things a second; they are collected and handed on about ten times a second. Over a pipe each
message is a frame: one byte for its kind, four for the payload's length (little endian), then the payload: JSON in
UTF-8 for notes, a C-ordered float64 matrix with `len(STEP_COLUMNS)` columns for steps.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitprof.measure.events import StepRow
from vitprof.recording.columns import STEP_COLUMNS, json_number

NOTE, STEPS = b"N", b"S"
HEADER = struct.Struct("<cI")
MAX_PAYLOAD_BYTES = 64 << 20
SEND_EVERY_S = 0.1


@dataclass(frozen=True)
class Note:
    """A message that is not a step. `kind` is environment, gauges, stage, phase, notice, facts or end."""

    kind: str
    values: dict[str, Any]
    """JSON values."""


Steps = NDArray[np.float64]
"""(n, len(STEP_COLUMNS)) float64: finished steps in order."""
Message = Note | Steps


class EventBuffer:
    """A buffer that takes a job's events from the training thread and gives them to another one, without a lock.

    `deque.append` and `popleft` are atomic, so a step costs the training loop one append.
    """

    def __init__(self) -> None:
        self._rows: deque[StepRow | Steps] = deque()
        self._notes: deque[Note] = deque()
        self._gauges: Callable[[], dict[str, float]] | None = None
        self.step: Callable[[StepRow], None] = self._rows.append
        self.steps: Callable[[Steps], None] = self._rows.append

    def environment(self, facts: dict[str, Any]) -> None:
        self._notes.append(Note("environment", facts))

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        self._gauges = read

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        self._notes.append(Note("stage", {"name": name, "fraction": json_number(fraction), "message": message}))

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        self._notes.append(Note("phase", {"name": name, "t_start_s": t_start_s, "t_end_s": t_end_s}))

    def notice(self, line: str) -> None:
        self._notes.append(Note("notice", {"line": line}))

    def facts(self, values: dict[str, Any]) -> None:
        self._notes.append(Note("facts", {k: json_number(v) for k, v in values.items()}))

    def end(self, status: str, error: str = "") -> None:
        """Notes the end of the job, its last message. `status` is done, stopped or failed."""
        self._notes.append(Note("end", {"status": status, "error": error}))

    def drain(self) -> list[Message]:
        """Returns everything reported since the last call: steps first, then gauges, then notes in order."""
        messages: list[Message] = []
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        rows: list[StepRow] = []
        for row in [self._rows.popleft() for _ in range(len(self._rows))]:
            if isinstance(row, tuple):
                rows.append(row)
                continue
            messages += _matrices(rows)
            messages.append(row)
            rows = []
        messages += _matrices(rows)
        if self._gauges is not None:
            messages.append(Note("gauges", self._gauges()))
        return messages + notes


def _matrices(rows: list[StepRow]) -> list[Steps]:
    """Returns a matrix of these rows; none where there are none."""
    if not rows:
        return []
    # takes three quarters of np.array(rows)'s time; the training thread waits for the GIL meanwhile
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=len(rows) * len(rows[0]))
    return [flat.reshape(len(rows), -1)]


def write_message(stream: IO[bytes], message: Message) -> None:
    """Writes one frame; the caller flushes."""
    if isinstance(message, Note):
        kind, payload = NOTE, json.dumps([message.kind, message.values], allow_nan=False).encode()
    else:
        kind, payload = STEPS, message.tobytes()
    stream.write(HEADER.pack(kind, len(payload)) + payload)


def read_messages(stream: IO[bytes]) -> Iterator[Message]:
    """Yields the messages of `stream` until it ends. A frame cut short by the writer's death ends it too.

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
            note = json.loads(payload)
            if not isinstance(note, list) or [type(part) for part in note] != [str, dict]:
                raise ValueError(f"not a note of this protocol: {payload[:60]!r}")
            yield Note(*note)
        else:
            yield np.frombuffer(payload, dtype=np.float64).reshape(-1, len(STEP_COLUMNS))
