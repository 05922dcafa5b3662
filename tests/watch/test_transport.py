"""Events reach the program around the script, by a thread that the script does not meet."""

import io
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.forking import exit_status_of, fork_doing
from vitprof.descriptors import FIRST_FREE
from vitprof.measure.wire import Message, Note, read_messages
from vitprof.watch import rank_identity
from vitprof.watch import transport as transport_module
from vitprof.watch.connection import Connection, connected_to
from vitprof.watch.events import NAN, Buffer, Description, Kind
from vitprof.watch.patching import SOCKET
from vitprof.watch.transport import (
    ANSWER_LIMIT_S,
    CLOCK_REPLACED,
    END_LIMIT_S,
    FEW_EVENTS,
    FOLLOWING_S,
    OUT_OF_ORDER_S,
    Transport,
    process_header,
)

ROW = (Kind.STEPPED, 1.5, 7, 3, NAN, NAN, NAN)
LIMIT_S = 60.0


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        listening.settimeout(LIMIT_S)
        yield listening


def transport(listening: socket.socket, buffer: Buffer) -> Transport:
    path = listening.getsockname()
    return Transport(buffer, lambda: Connection(connected_to(path)))


def test_events_and_descriptions_arrive(listening: socket.socket) -> None:
    buffer = Buffer()
    sending = transport(listening, buffer)
    sending.begin()
    buffer.describe(Description(3, "optimizer", {"name": "SGD"}))
    buffer.emit(ROW)
    sending.finish()
    with listening.accept()[0] as connection, connection.makefile("rb") as stream:
        header, described, events = read_messages(stream)
    assert header == Note("process", process_header())
    facts = {"number": 3, "kind": "optimizer", "facts": {"name": "SGD"}}
    assert described == Note("described", facts)
    assert not isinstance(events, Note)
    assert np.array_equal([column[0] for column in events.values()], ROW, equal_nan=True)


def test_its_thread_is_none_that_a_script_could_join(listening: socket.socket) -> None:
    before = threading.enumerate()
    sending = transport(listening, Buffer())
    sending.begin()
    assert threading.enumerate() == before
    sending.finish()


def test_a_process_without_a_loop_connects_to_nothing(listening: socket.socket) -> None:
    """A worker of a loader gets its indices from a queue, and ends."""
    buffer = Buffer()
    sending = transport(listening, buffer)
    sending.begin()
    buffer.emit((Kind.WAITED, *ROW[1:]))
    buffer.emit((Kind.FINISHED, *ROW[1:]))
    sending.finish()
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.accept()


def test_its_descriptor_is_never_one_of_the_standard_streams(listening: socket.socket) -> None:
    def connect() -> int:
        os.close(0)
        buffer = Buffer()
        sending = transport(listening, buffer)
        buffer.emit(ROW)
        sending._connect()
        assert sending._connection is not None
        return sending._connection._socket.fileno()

    assert FIRST_FREE <= exit_status_of(fork_doing(connect)) < 255


def test_without_a_receiver_events_are_dropped_and_counted(tmp_path: Path) -> None:
    buffer = Buffer()
    buffer.MOST = 3  # type: ignore[misc]
    sending = Transport(buffer, lambda: Connection(connected_to(str(tmp_path / "nobody"))))
    sending.begin()
    for _ in range(10):
        buffer.emit(ROW)
    sending.finish()
    _, rows = buffer.take()
    assert (rows[0][0], rows[0][4], len(rows)) == (Kind.DROPPED, 7, 4)


def test_a_receiver_that_goes_ends_nothing(listening: socket.socket) -> None:
    buffer = Buffer()
    sending = transport(listening, buffer)
    buffer.emit(ROW)
    sending._flush()
    listening.accept()[0].close()
    for _ in range(3):
        buffer.emit(ROW)
        sending._flush()
    sending.finish()
    assert sending._connection is None


def test_a_fork_sends_nothing_of_its_parents(listening: socket.socket) -> None:
    buffer = Buffer()
    sending = transport(listening, buffer)
    buffer.emit(ROW)

    def forget() -> int:
        sending.forget()
        sending.finish()
        return len(buffer.take()[1])

    assert exit_status_of(fork_doing(forget)) == 0
    sending.finish()
    with listening.accept()[0] as connection, connection.makefile("rb") as stream:
        assert len(list(read_messages(stream))) == 2


class FakeConnection:
    """The program around a script, which answers by a list; time passes while nothing comes."""

    def __init__(self, clock: "Clock") -> None:
        self.clock = clock
        self.coming: list[list[dict[str, Any]]] = []
        """What it sends next: each is what one reading finds."""
        self.waited_s: list[float] = []
        self.error: OSError | None = None
        """Is raised where something is sent to it."""
        self.is_closed = False
        self._sent = b""

    def send(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self._sent += data

    def answers(self, limit_s: float) -> list[dict[str, Any]]:
        self.waited_s.append(limit_s)
        if self.coming:
            return self.coming.pop(0)
        self.clock.now_s += limit_s
        return []

    def close(self) -> None:
        self.is_closed = True

    def messages(self) -> list[Message]:
        """Returns what it got, without what the process says of itself."""
        header, *others = read_messages(io.BytesIO(self._sent))
        assert isinstance(header, Note)
        assert header.kind == "process"
        return others

    def kinds(self) -> list[str]:
        return [each.kind if isinstance(each, Note) else "events" for each in self.messages()]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Sending:
    """A transport that sends to a fake, without its thread."""

    def __init__(self, clock: Clock) -> None:
        self.buffer = Buffer()
        self.connection = FakeConnection(clock)
        self.lost: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.transport = Transport(
            self.buffer,
            lambda: self.connection,  # type: ignore[arg-type, return-value]
            lost=self.lost.append,
            received=self._tell,
        )

    def _tell(self, answer: dict[str, Any]) -> bool:
        is_for_it = "headroom" in answer
        if is_for_it:
            self.told.append(answer)
        return is_for_it

    def trains(self, at_s: float = 1.5, n: int = 1) -> None:
        for _ in range(n):
            self.buffer.emit((Kind.STEPPED, at_s, 7, 3, NAN, NAN, NAN))

    def flush(self) -> None:
        self.transport._flush()
        self.transport._read_answers(0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(transport_module, "perf_counter", clock)
    return clock


@pytest.fixture
def sending(clock: Clock) -> Sending:
    return Sending(clock)


def test_a_question_comes_after_all_events_and_its_answer_is_returned(sending: Sending) -> None:
    sending.trains()
    sending.connection.coming = [[{"answer": "other"}], [{"answer": "steps", "ended": 3}]]
    found = sending.transport.ask("steps", {"thread": 7})
    assert found == {"answer": "steps", "ended": 3}
    assert sending.connection.kinds() == ["events", "steps"]
    assert sending.connection.messages()[-1] == Note("steps", {"thread": 7})
    assert sending.transport.ask("other", {}) == {"answer": "other"}, "it was kept"


def test_a_question_is_asked_before_anything_was_trained(sending: Sending) -> None:
    """As of a script that only fetches: it is told that it trains nothing."""
    sending.connection.coming = [[{"answer": "steps", "ended": 0}]]
    assert sending.transport.ask("steps", {}) == {"answer": "steps", "ended": 0}


def test_without_an_answer_the_script_goes_on_after_a_while(sending: Sending, clock: Clock) -> None:
    assert sending.transport.ask("steps", {}) is None
    assert clock.now_s == 100.0 + ANSWER_LIMIT_S


def test_without_a_program_nothing_is_waited_for(clock: Clock) -> None:
    def connect() -> Connection:
        raise ConnectionRefusedError

    lost: list[str] = []
    alone = Transport(Buffer(), connect, lost=lost.append)
    assert alone.ask("steps", {}) is None
    assert alone.run_number() is None
    assert clock.now_s == 100.0
    assert lost == [], "nothing was trained that would be lost"


def test_what_the_program_says_of_itself_is_no_answer(sending: Sending) -> None:
    sending.trains()
    sending.connection.coming = [[{"headroom": 4}, {"answer": "steps"}]]
    sending.flush()
    assert sending.told == [{"headroom": 4}]
    assert sending.transport.ask("steps", {}) == {"answer": "steps"}


def test_the_number_of_a_run_is_known_for_each_of_its_pauses(
    sending: Sending, clock: Clock
) -> None:
    """The program says it once, and a notebook's run is paused after each cell."""
    sending.trains()
    sending.connection.coming = [[{"run": 12}]]
    assert [sending.transport.run_number() for _ in range(2)] == [12, 12]
    assert clock.now_s == 100.0


def test_a_run_without_a_number_is_not_waited_for_long(sending: Sending, clock: Clock) -> None:
    sending.trains()
    assert sending.transport.run_number() is None
    assert clock.now_s == 100.0 + END_LIMIT_S


def test_a_refusal_ends_it_with_the_programs_own_reason(sending: Sending) -> None:
    sending.trains()
    sending.connection.coming = [[{"error": "cannot write to /x"}]]
    sending.flush()
    assert sending.lost == ["cannot write to /x"]
    assert sending.connection.is_closed
    n_before = len(sending.connection.messages())
    sending.trains()
    sending.flush()
    assert len(sending.connection.messages()) == n_before
    assert sending.lost == ["cannot write to /x"], "said once"


def test_a_program_that_went_with_a_reason_is_heard(sending: Sending) -> None:
    sending.trains()
    sending.flush()
    sending.connection.error = BrokenPipeError("gone")
    sending.connection.coming = [[{"error": "no space left"}]]
    sending.trains()
    sending.flush()
    assert sending.lost == ["no space left"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (BrokenPipeError("gone"), "gone"),
        (TimeoutError("timed out"), "sending data failed: timed out"),
    ],
)
def test_a_program_that_went_without_one_is_named_by_the_error(
    sending: Sending, error: OSError, why: str
) -> None:
    sending.trains()
    sending.connection.error = error
    sending.flush()
    assert sending.lost == [why]


def test_answers_that_nobody_reads_are_none_at_the_end(sending: Sending) -> None:
    sending.trains()
    sending.flush()
    sending.connection.coming = [[{"run": 3}], [{"error": "late"}]]
    sending.trains()
    sending.transport.finish()
    assert sending.connection.kinds() == ["events", "events"]
    assert sending.connection.is_closed
    assert sending.lost == []


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (FEW_EVENTS * [1.5], []),
        ([5.0], [5.0 - 2 * OUT_OF_ORDER_S]),
        ([5.0, 5.0 - 2 * OUT_OF_ORDER_S], []),
    ],
    ids=["stands still", "runs backwards", "runs backwards among those sent at once"],
)
def test_a_clock_that_was_replaced_ends_it(
    sending: Sending, first: list[float], later: list[float]
) -> None:
    for at_s in first:
        sending.trains(at_s)
    sending.flush()
    for at_s in later:
        sending.trains(at_s)
    sending.flush()
    assert sending.lost == [CLOCK_REPLACED]
    failure = sending.connection.messages()[-1]
    facts = {"number": 0, "kind": "failure", "facts": {"why": CLOCK_REPLACED}}
    assert failure == Note("described", facts)


@pytest.mark.parametrize(
    "times_s",
    [(FEW_EVENTS - 1) * [1.5], [1.0, 1.0 - OUT_OF_ORDER_S / 2], [*(FEW_EVENTS * [1.0]), 1.1]],
    ids=["a few at once", "threads out of order", "it goes on"],
)
def test_a_clock_that_tells_time_is_no_replaced_one(sending: Sending, times_s: list[float]) -> None:
    for at_s in times_s:
        sending.trains(at_s)
    sending.flush()
    assert sending.lost == []


def test_the_time_is_told_for_a_while_after_the_last_events(sending: Sending, clock: Clock) -> None:
    sending.trains()
    sending.flush()
    for _ in range(3):
        clock.now_s += FOLLOWING_S - 0.5
        sending.flush()
    told = sending.connection.messages()[1:]
    assert told == [Note("clock", {"now_s": 100.0 + FOLLOWING_S - 0.5})]


def test_what_rank_a_process_is_is_known_though_it_has_left_its_group_by_the_end(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a short training: nothing is sent before its end. A launcher that names no rank was around it."""
    buffer = Buffer()
    sending = transport(listening, buffer)
    joined = SimpleNamespace(get_rank=lambda: 1, get_world_size=lambda: 2)
    monkeypatch.setenv(SOCKET, listening.getsockname())
    monkeypatch.setattr(rank_identity, "distributed", lambda: joined)
    sending.note_process()
    monkeypatch.setattr(rank_identity, "distributed", lambda: None)
    buffer.emit(ROW)
    sending.finish()
    with listening.accept()[0] as connection, connection.makefile("rb") as stream:
        header = next(read_messages(stream))
    assert isinstance(header, Note)
    assert (header.values["rank"], header.values["world_size"]) == (1, 2)
    assert not header.values["recorded"]


def test_another_rank_of_a_script_that_watches_itself_connects_to_nothing(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv(SOCKET, raising=False)
    buffer = Buffer()
    sending = transport(listening, buffer)
    buffer.emit(ROW)
    sending.finish()
    assert not sending.connected
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.accept()
