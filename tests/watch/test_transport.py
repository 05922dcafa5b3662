"""Events reach the program around the script, by a thread that the script does not meet."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from vitprof.descriptors import FIRST_FREE
from vitprof.measure.wire import Note, read_messages
from vitprof.watch.events import NAN, Buffer, Description, Kind
from vitprof.watch.transport import Transport, process_header

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
    return Transport(buffer, listening.getsockname())


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
    child = os.fork()
    if not child:
        os.close(0)
        buffer = Buffer()
        sending = transport(listening, buffer)
        buffer.emit(ROW)
        sending._connect()
        assert sending._socket is not None
        os._exit(sending._socket.fileno())
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) >= FIRST_FREE


def test_without_a_receiver_events_are_dropped_and_counted(tmp_path: Path) -> None:
    buffer = Buffer()
    buffer.MOST = 3  # type: ignore[misc]
    sending = Transport(buffer, str(tmp_path / "nobody"))
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
    assert sending._socket is None


def test_a_fork_sends_nothing_of_its_parents(listening: socket.socket) -> None:
    buffer = Buffer()
    sending = transport(listening, buffer)
    buffer.emit(ROW)
    child = os.fork()
    if not child:
        sending.forget()
        sending.finish()
        os._exit(len(buffer.take()[1]))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    sending.finish()
    with listening.accept()[0] as connection, connection.makefile("rb") as stream:
        assert len(list(read_messages(stream))) == 2
