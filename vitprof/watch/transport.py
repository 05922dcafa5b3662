"""Sends the events of a watched process to the program that started it.

A thread sends twice a second. No hook and no step ever waits for it: what it locks is its own. It is
no thread of `threading`: a script that joins all threads, or counts them, does not meet it.
"""

from __future__ import annotations

import _thread
import io
import itertools
import os
import platform
import socket
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from vitprof.descriptors import above_standard_streams
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note, write_message
from vitprof.watch.events import COLUMNS, WIDTH, Buffer, Description, Row
from vitprof.watch.own_thread import OwnThread

SEND_FIRST_S = 0.02
"""How soon (s) to send first, for a script that is killed; each time then waits longer than the one
before, up to `SEND_EVERY_S`."""
SEND_EVERY_S = 0.5
SEND_LIMIT_S = 5.0
"""How long (s) sending may be stuck before the receiver counts as gone; this bounds the data that
wait to be sent."""
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""Flag of sending: no SIGPIPE where the receiver has gone. A script may have made that signal end
it (`SIG_DFL`), as it does in programs that write into pipes."""


class Transport:
    """A connection to the program around the script, and the thread that sends."""

    def __init__(self, buffer: Buffer, path: str) -> None:
        """`path`: of the program's socket."""
        self._buffer = buffer
        self._path = path
        self._socket: socket.socket | None = None
        self.connected = False
        """Whether it ever connected: this process, or the one that it was forked from, trains."""
        self._refused = False
        """Whether the program is gone, or does not want the events."""
        self._sending = _thread.allocate_lock()
        self._ending = _thread.allocate_lock()
        """Held until the process ends: who waits for it with a limit wakes up at the end."""
        self._thread = OwnThread(self._run, "vitprof-events")

    def begin(self) -> None:
        """Sends from here on. It connects once a loop has done something: a worker never does."""
        self._ending.acquire()
        self._thread.start()

    def finish(self) -> None:
        """Sends what is left, and closes the connection. May be called in any thread, and again."""
        if self._ending.locked():
            self._ending.release()
            if not self._thread.join(SEND_LIMIT_S):  # it is stuck sending
                return
        with self._sending:
            self._flush()
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def forget(self) -> None:
        """Drops everything in a forked process, where no thread sends."""
        self._buffer.forget()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._sending = _thread.allocate_lock()
        self._ending = _thread.allocate_lock()

    def _run(self) -> None:
        wait_s = SEND_FIRST_S
        while not self._ending.acquire(timeout=wait_s):
            wait_s = min(1.25 * wait_s, SEND_EVERY_S)
            with self._sending:
                self._flush()

    def _flush(self) -> None:
        if self._socket is None and not self._connect():
            self._buffer.bound(perf_counter())
            return
        descriptions, rows = self._buffer.take()
        messages: list[Message] = [_described(description) for description in descriptions]
        if rows:
            messages.append(_columns(rows))
        self._send(messages)

    def _connect(self) -> bool:
        """Connects, where there is anything to send; returns whether it did."""
        if self._refused or not self._buffer.has_work():
            return False
        try:
            self._socket = connected_to(self._path)
        except OSError:
            self._refused = True
            return False
        self.connected = True
        self._send([Note("process", process_header())])
        return self._socket is not None

    def _send(self, messages: Sequence[Message]) -> None:
        """Sends messages; without a receiver they are lost, and no more are sent."""
        if self._socket is None or not messages:
            return
        frames = io.BytesIO()
        for message in messages:
            write_message(frames, message)
        try:
            self._socket.sendall(frames.getvalue(), NO_SIGNAL)
        except OSError:
            self._socket.close()
            self._socket = None
            self._refused = True


def connected_to(path: str) -> socket.socket:
    """Returns a socket that is connected to `path`. Raises `OSError`."""
    connected = above_standard_streams(socket.socket(socket.AF_UNIX))
    try:
        connected.settimeout(SEND_LIMIT_S)
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected


def _described(description: Description) -> Note:
    facts = {"number": description.number, "kind": description.kind, "facts": description.facts}
    return Note("described", facts)


def _columns(rows: Sequence[Row]) -> Columns:
    figures = np.fromiter(itertools.chain.from_iterable(rows), np.float64, len(rows) * WIDTH)
    return dict(zip(COLUMNS, figures.reshape(-1, WIDTH).T, strict=True))


def process_header() -> dict[str, Any]:
    """Returns what a reader of the events must know of this process."""
    return {"pid": os.getpid(), "python": platform.python_version()}
