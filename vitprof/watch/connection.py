"""The socket to the program that records a training: the command around the script, or a collector beside it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import vitprof
from vitprof.watch.on_import import SOCKET

SEND_LIMIT_S = 5.0
"""How long (s) sending may be stuck before the receiver counts as gone; this bounds the data that wait to be sent."""
START_LIMIT_S = 30.0
"""The same while the collector starts, which takes a second or two."""
COLLECTOR = (
    "import os, sys; os.fork() and os._exit(0); sys.path[:1] = []; sys.path.append(sys.argv.pop(1)); "
    "from vitprof.jobs.collector import main; main()"
)
"""The program of the collector. It detaches itself from the script at once: nobody has to wait for its end, it is not
in the script's process tree, and modules in the current directory cannot hide those that it imports."""


class Connection:
    """A connected socket. `send` raises `OSError` where the receiver is gone."""

    def __init__(self, connected: socket.socket, starting: subprocess.Popen[bytes] | None = None) -> None:
        self._socket = connected
        self._starting = starting
        self._said = b""
        self.collector = starting is not None
        """Whether a collector receives the data; it does not see how the script ends, unless that is sent."""
        self.run: int | None = None
        """The run's number, once it is known."""
        self.refusal = ""
        """Why nothing is recorded; "" where it is."""
        connected.settimeout(START_LIMIT_S if self.collector else SEND_LIMIT_S)

    def send(self, data: bytes) -> None:
        """Sends all of `data`."""
        self._socket.sendall(data)

    def listen(self, timeout_s: float = 0.0) -> None:
        """Reads the collector's answer, if it has not been read yet, and waits at most `timeout_s` for it."""
        if not self.collector or self.run is not None or self.refusal:
            return
        if self._starting is not None and self._starting.poll() is not None:
            self._starting = None  # it has forked and runs on, detached
        limit_s = self._socket.gettimeout()
        until = time.monotonic() + timeout_s
        try:
            while b"\n" not in self._said:
                self._socket.settimeout(max(0.0, until - time.monotonic()))
                part = self._socket.recv(4096)
                if not part:
                    self.refusal = "the program that records the run has ended"
                    return
                self._said += part
        except (BlockingIOError, TimeoutError):
            return
        finally:
            self._socket.settimeout(limit_s)
        told: dict[str, Any] = json.loads(self._said.partition(b"\n")[0])
        self.run, self.refusal = told.get("run"), str(told.get("error", ""))
        self._socket.settimeout(SEND_LIMIT_S)

    def limit(self, seconds: float) -> None:
        """Makes sending fail after it was stuck for this many seconds."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Closes the socket, in this process only."""
        if self._starting is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._starting.wait(SEND_LIMIT_S)
        self._socket.close()

    def forget(self) -> None:
        """Closes the socket in a forked process."""
        if self._starting is not None:
            self._starting.returncode = 0  # not this process's child
        self._socket.close()


def connect() -> Connection:
    """Returns a connection to the command around the script, else to a new collector. Raises `OSError`."""
    path = os.environ.get(SOCKET)
    return to_command(path) if path else to_collector()


def to_command(path: str) -> Connection:
    """Returns a connection to the socket `path` that the command listens on. Raises `OSError`."""
    connecting = socket.socket(socket.AF_UNIX)
    try:
        connecting.settimeout(SEND_LIMIT_S)
        connecting.connect(path)
    except OSError:
        connecting.close()
        raise
    return Connection(connecting)


def to_collector() -> Connection:
    """Starts a collector, and returns the connection to it at once. Raises `OSError`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    root = str(Path(vitprof.__file__).resolve().parents[1])
    descriptor = theirs.fileno()
    try:
        with theirs:
            starting = subprocess.Popen(
                [sys.executable, "-c", COLLECTOR, root, str(descriptor), str(os.getpid())],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is for the script
            )
    except OSError:
        ours.close()
        raise
    return Connection(ours, starting)
