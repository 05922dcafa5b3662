"""The socket to whoever records a training: the command around the script, or a program that is started beside it."""

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
"""How long sending may stand still before the listener counts as gone: what waits to be sent is bounded by it."""
START_LIMIT_S = 30.0
"""The same while the program beside the script still starts; that takes a second or two."""
COLLECTOR = (
    "import os, sys; os.fork() and os._exit(0); sys.path[:1] = []; sys.path.append(sys.argv.pop(1)); "
    "from vitprof.jobs.collector import main; main()"
)
"""What the program beside the script does. It lets go of the script at once: nobody has to wait for its end, it is no
part of the script's process tree, and no module in the current directory stands in for one of its own."""


class Connection:
    """A connected socket. Its methods raise `OSError` where nobody listens any more."""

    def __init__(self, connected: socket.socket, starting: subprocess.Popen[bytes] | None = None) -> None:
        self._socket = connected
        self._starting = starting
        self._said = b""
        self.collector = starting is not None
        """Whether a program beside the script listens: it knows of the script's end only what it is told."""
        self.run: int | None = None
        """The number of the run, once that is known."""
        self.refusal = ""
        """Why nothing is recorded; "" otherwise."""
        connected.settimeout(START_LIMIT_S if self.collector else SEND_LIMIT_S)

    def send(self, data: bytes) -> None:
        """Sends all of `data`."""
        self._socket.sendall(data)

    def listen(self, timeout_s: float = 0.0) -> None:
        """Takes note of what the program beside the script says, and waits so long for it if it said nothing yet."""
        if not self.collector or self.run is not None or self.refusal:
            return
        if self._starting is not None and self._starting.poll() is not None:
            self._starting = None  # it lives on as nobody's child
        limit_s = self._socket.gettimeout()
        until = time.monotonic() + timeout_s
        try:
            while b"\n" not in self._said:
                self._socket.settimeout(max(0.0, until - time.monotonic()))
                part = self._socket.recv(4096)
                if not part:
                    self.refusal = "the program that records ended"
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
        """Has sending fail after standing still for so long."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Closes the socket, in this process only."""
        if self._starting is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._starting.wait(SEND_LIMIT_S)
        self._socket.close()

    def forget(self) -> None:
        """In a forked process: closes the socket there."""
        if self._starting is not None:
            self._starting.returncode = 0  # not this process's child
        self._socket.close()


def connect() -> Connection:
    """Returns the connection to the command around the script, or to a program started beside it. Raises `OSError`."""
    path = os.environ.get(SOCKET)
    return to_command(path) if path else to_collector()


def to_command(path: str) -> Connection:
    """Returns a connection to the socket that the command listens on."""
    connecting = socket.socket(socket.AF_UNIX)
    try:
        connecting.settimeout(SEND_LIMIT_S)
        connecting.connect(path)
    except OSError:
        connecting.close()
        raise
    return Connection(connecting)


def to_collector() -> Connection:
    """Starts a program beside the script that records it, and returns at once."""
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
