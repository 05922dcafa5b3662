"""What is said at the start of who gets in."""

import subprocess
import sys
from pathlib import Path

import pytest

from vitprof.ui import web
from vitprof.ui.gate import Token
from vitprof.ui.web import start_lines

GIVEN, MADE = (
    Token("correct horse battery", generated=False),
    Token("made at this start", generated=True),
)


def test_a_token_is_said_only_where_it_was_made_and_nothing_where_only_this_machine_reaches_it() -> (
    None
):
    for address in ("127.0.0.1", "::1", "localhost"):
        assert (
            start_lines(address, None, login=False)
            == start_lines(address, GIVEN, login=False)
            == []
        )
    assert GIVEN.text not in "".join(start_lines("0.0.0.0", GIVEN, login=False))
    for address in ("0.0.0.0", "127.0.0.1"):
        assert start_lines(address, MADE, login=False)[0].endswith(f": {MADE.text}")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7", "my-host", None])
def test_wider_it_says_it_is_closed_or_what_it_asks_for(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "find_spec", lambda name: name == "authlib")
    closed, *ways = start_lines(address, None, login=False)
    assert "closed" in closed
    assert (address or "all addresses") in closed
    assert [way for way in ways if "VITPROF_TOKEN" in way]
    (asks,) = start_lines(address, GIVEN, login=True)
    assert asks.endswith("it asks for the token (VITPROF_TOKEN) and a login")
    (asks,) = start_lines(address, None, login=True)
    assert asks.endswith("it asks for a login")


def test_a_login_that_nobody_can_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "find_spec", lambda _: None)
    (line,) = start_lines("127.0.0.1", None, login=True)
    assert (
        line == "vitprof: nobody can log in until you run python -m pip install 'streamlit[auth]'"
    )


def test_a_thread_that_waits_for_a_file_does_not_hold_up_the_end(tmp_path: Path) -> None:
    source = """
import os, signal, sys, threading, uvicorn
from concurrent.futures import ThreadPoolExecutor
from vitprof.ui import serve

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        threading.Timer(0.1, signal.raise_signal, [signal.SIGTERM]).start()
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

os.mkfifo(sys.argv[1])
ThreadPoolExecutor().submit(open, sys.argv[1])
serve.LEAVE_WITHIN_S = 0.1
serve.limit_end()
signal.signal(signal.SIGTERM, serve._leave)
uvicorn.run(app, port=0, log_level="critical")
"""
    command = [sys.executable, "-c", source, str(tmp_path / "fifo")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_server_that_hangs_as_it_closes_says_where_and_ends() -> None:
    source = """
import signal, sys, threading, uvicorn
from vitprof.ui import serve

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        threading.Timer(0.1, signal.raise_signal, [signal.SIGTERM]).start()
        await receive()
        await hang(receive)

async def hang(receive):
    await receive()

serve.END_WITHIN_S = 0.5
serve.limit_end()
uvicorn.run(app, port=0, log_level="critical")
"""
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "Timeout (0:00:00.500000)!" in ended.stderr
