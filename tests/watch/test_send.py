"""The connection of a watched script, whose descriptors are the script's to close."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.watch.watching import Host
from vitprof.watch.connection import GONE, SEND_LIMIT_S, START_LIMIT_S, Connection


@pytest.mark.parametrize("use", ["send", "limit", "answers", "close", "forget"])
def test_a_number_that_is_the_scripts_file_by_now_is_left_alone(use: str, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    connection = Connection(ours)
    with theirs, (tmp_path / "checkpoint").open("w") as file:
        os.dup2(file.fileno(), number)  # this closes the socket
        what = {"send": (b"steps",), "limit": (1.0,), "answers": (0.0,)}.get(use, ())
        if use in ("close", "forget"):
            getattr(connection, use)(*what)
        else:
            with pytest.raises(OSError, match="the script has closed"):
                getattr(connection, use)(*what)
        connection.close()
        os.write(number, b"weights")
        os.close(number)
    assert (tmp_path / "checkpoint").read_text() == "weights"


def test_answers_are_read_line_by_line_however_they_arrive() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    with theirs:
        assert connection.answers(0.0) == [], "nothing is there, and nothing is waited for"
        theirs.sendall(b'{"run": 1}\n{"answer": "st')
        assert connection.answers(0.0) == [{"run": 1}]
        theirs.sendall(b'eps"}\n')
        assert connection.answers(60.0) == [{"answer": "steps"}]
    with pytest.raises(ConnectionError, match=GONE):
        connection.answers(0.0)
    connection.close()


def test_a_receiver_that_goes_is_named_the_same_however_that_is_noticed() -> None:
    """Its last words may not be read, and what was sent to it neither: that resets the connection."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    connection.send(b"steps")
    theirs.close()
    with pytest.raises(ConnectionResetError, match=GONE):
        connection.answers(0.0)
    with pytest.raises(BrokenPipeError, match=GONE):
        connection.send(b"more")
    connection.close()


def test_a_collector_may_take_longer_until_it_answers_for_the_first_time() -> None:
    ours, theirs = socket.socketpair()
    starting: Any = SimpleNamespace(poll=lambda: 0, wait=lambda limit_s: 0)
    connection = Connection(ours, starting)
    with theirs:
        assert ours.gettimeout() == START_LIMIT_S
        connection.answers(0.0)
        assert ours.gettimeout() == START_LIMIT_S
        theirs.sendall(b'{"run": 1}\n')
        connection.answers(0.0)
        assert ours.gettimeout() == SEND_LIMIT_S
    connection.close()


def test_a_script_that_ends_at_broken_pipes_outlives_its_receiver(host: Host) -> None:
    host = host.running("tests.watch.touchy_scripts")
    told = host.ok("ends_at_broken_pipes_and_sends_at_its_end", watched=False)
    assert told.returned == "BrokenPipeError"
    told = host.run("ends_at_broken_pipes", hang_up=True)
    assert (told.status, told.returned) == (0, "trained")
    assert told.complaint == f"vitprof: gave up watching ({GONE}); training goes on\n"


def test_an_audit_hook_that_forbids_connections_is_a_line(host: Host) -> None:
    told = host.running("tests.watch.touchy_scripts").run("forbids_connections")
    assert (told.status, told.returned) == (0, "trained")
    why = "PermissionError: no connections here"
    assert told.complaint == f"vitprof: gave up watching ({why}); training goes on\n"


def test_a_script_that_watches_itself_and_stops_its_clocks_is_not_watched_any_more(
    host: Host,
) -> None:
    script = host.running("tests.watch.touchy_scripts")
    told = script.run("stops_its_clocks", watched=False)
    assert (told.status, told.returned) == (0, "trained")
    why = "the script has replaced the clock, time.perf_counter"
    assert told.complaint == f"vitprof: gave up watching ({why}); training goes on\n"
    assert told.facts()["partly_watched"] == why
    assert (told.steps["step_s"] > 0).all()


def test_a_closed_standard_stream_stays_closed(host: Host) -> None:
    """What is opened next gets its number: a script would print into our connection."""
    host = host.running("tests.watch.touchy_scripts")
    assert host.ok("has_closed_standard_input_and_error").returned == "1"
    beside = {"VITPROF_WATCH_SOCKET": ""}
    started = host.ok(
        "starts_a_collector_with_closed_standard_streams", watched=False, listen=False, env=beside
    )
    assert started.returned == "1 True"
