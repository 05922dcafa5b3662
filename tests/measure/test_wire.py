"""Events: what goes into the pipe comes out of it, and nothing else does."""

import io
import json
import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.measure import wire
from vitprof.measure.step_columns import StepMarks
from vitprof.measure.wire import (
    HEADER,
    NOTE,
    STEPS,
    EventBuffer,
    Message,
    Note,
    read_messages,
    write_message,
)
from vitprof.recording.columns import STEP_COLUMNS

WIDTH = len(STEP_COLUMNS)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
NOTES = st.builds(Note, st.text(), st.dictionaries(st.text(), JSON, max_size=4))
COLUMNS = st.tuples(st.integers(0, 5), st.sets(st.text(), min_size=1, max_size=4)).map(
    lambda of: {name: np.random.default_rng(i).normal(size=of[0]) for i, name in enumerate(of[1])}
)


def framed(*messages: Message) -> bytes:
    stream = io.BytesIO()
    for message in messages:
        write_message(stream, message)
    return stream.getvalue()


def same(a: Message, b: Message) -> bool:
    if isinstance(a, Note) or isinstance(b, Note):
        return a == b
    return [(k, v.tobytes()) for k, v in a.items()] == [(k, v.tobytes()) for k, v in b.items()]


def marks(step: float) -> StepMarks:
    marks = StepMarks()
    for name in StepMarks.__slots__:
        setattr(marks, name, None if name == "made" else step)
    return marks


@given(st.lists(NOTES | COLUMNS, max_size=6))
def test_round_trip(messages: list[Message]) -> None:
    got = list(read_messages(io.BytesIO(framed(*messages))))
    assert len(got) == len(messages)
    assert all(same(a, b) for a, b in zip(got, messages, strict=True))


def test_nan_infinity_and_columns_that_the_receiver_does_not_know_cross_in_steps() -> None:
    steps = {"a_new_s": np.arange(4.0), "loss": np.array([math.nan, math.inf, -0.0, 1e-300])}
    (got,) = read_messages(io.BytesIO(framed(steps)))
    assert same(got, steps)


def test_a_frame_cut_short_ends_the_stream() -> None:
    first, second = Note("stage", {"name": "training"}), {"step": np.ones(2)}
    whole, begin = framed(first, second), len(framed(first))
    for length in range(len(whole)):
        got = list(read_messages(io.BytesIO(whole[:length])))
        assert len(got) == (length >= begin)


@pytest.mark.parametrize(
    "garbage",
    [
        b"Traceback (most recent call last):\n",
        HEADER.pack(b"X", 4) + b"1234",
        HEADER.pack(NOTE, wire.MAX_PAYLOAD_BYTES + 1),
        HEADER.pack(NOTE, 4) + b"{{{{",
        HEADER.pack(NOTE, 4) + b"[12]",
        HEADER.pack(NOTE, 8) + b'["a", 1]',
        HEADER.pack(NOTE, 2) + b"\xff\xfe",
        HEADER.pack(STEPS, 8) + b"x" * 8,
        HEADER.pack(STEPS, 12) + b"[1]    \n" + b"x" * 4,
        HEADER.pack(STEPS, 16) + b"[1]    \n" + b"x" * 8,
        HEADER.pack(STEPS, 16) + b"[]     \n" + b"x" * 8,
        HEADER.pack(STEPS, 24) + b'["a","b"]      \n' + b"x" * 8,
    ],
)
def test_bytes_that_are_no_frame(garbage: bytes) -> None:
    stream = io.BytesIO(framed(Note("facts", {})) + garbage)
    messages = read_messages(stream)
    assert next(messages) == Note("facts", {})
    with pytest.raises(ValueError):
        list(messages)


@given(st.binary(max_size=200))
def test_any_bytes_end_or_are_refused(garbage: bytes) -> None:
    try:
        for message in read_messages(io.BytesIO(garbage)):
            assert isinstance(message, (Note, dict))
    except ValueError:
        pass


def test_what_is_not_available_is_null() -> None:
    buffer = EventBuffer()
    buffer.stage("starting", math.nan)
    buffer.facts({"test_loss": math.nan, "n_train": 5, "gpu_mem_peak_bytes": math.inf})
    stage, facts = buffer.drain()
    assert stage == Note("stage", {"name": "starting", "fraction": None, "message": ""})
    assert facts == Note("facts", {"test_loss": None, "n_train": 5, "gpu_mem_peak_bytes": None})
    json.dumps(stage.values, allow_nan=False)
    noted = Note("facts", {"loaders": [{"wait_s": math.nan}], "n": math.inf})
    (note,) = read_messages(io.BytesIO(framed(noted)))
    assert note == Note("facts", {"loaders": [{"wait_s": None}], "n": None})


def test_steps_come_before_the_notes_of_the_same_moment() -> None:
    buffer = EventBuffer()
    buffer.environment({"python": "3"})
    buffer.step(marks(0.0))
    buffer.phase("shutdown", 1.0, 2.0)
    buffer.step(marks(1.0))
    buffer.end("done")
    steps, *notes = buffer.drain()
    assert not isinstance(steps, Note)
    assert tuple(steps) == STEP_COLUMNS
    assert steps["step"].tolist() == [0, 1]
    assert [note.kind for note in notes if isinstance(note, Note)] == [
        "environment",
        "phase",
        "end",
    ]
    assert notes[-1] == Note("end", {"status": "done", "error": ""})
    assert buffer.drain() == []


class Untimely(deque[StepMarks]):
    """Steps to which the last one is added, and the job's end, just when somebody has looked how many there are."""

    def __init__(self, buffer: EventBuffer) -> None:
        super().__init__()
        self.buffer: EventBuffer | None = buffer

    def __len__(self) -> int:
        n, buffer, self.buffer = super().__len__(), self.buffer, None
        if buffer is not None:
            self.append(marks(7.0))
            buffer.end("done")
        return n


def test_the_end_never_overtakes_a_step() -> None:
    buffer = EventBuffer()
    buffer._marks = Untimely(buffer)
    messages = buffer.drain() + buffer.drain()
    assert [type(message) for message in messages] == [dict, Note]
