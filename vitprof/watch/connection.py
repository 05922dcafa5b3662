"""A script's connection to the program that records it: the command around the script, or one that is
started beside it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import vitprof
from vitprof.descriptors import above_standard_streams
from vitprof.watch.patching import SOCKET

SEND_LIMIT_S = 5.0
"""How long (s) sending may be stuck before the receiver counts as gone; this bounds the data that
wait to be sent."""
START_LIMIT_S = 30.0
"""The same while the collector starts, which takes a second or two."""
COLLECTOR = (
    "import os, signal, sys; os.fork() and os._exit(0); signal.pthread_sigmask(signal.SIG_SETMASK, ()); "
    "sys.path[:1] = []; sys.path.append(sys.argv.pop(1)); "
    "from vitprof.jobs.collector import main; main()"
)
"""The collector detaches itself at once, and takes signals, which are blocked in the thread that starts
it; modules in the current directory cannot hide those that it imports."""
GONE = "the program that records the run has ended"
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""Flag of sending: no SIGPIPE where the receiver has gone. A script may have made that signal end
it (`SIG_DFL`), as it does in programs that write into pipes."""


class Connection:
    """A connected socket. A script may close its descriptor, as daemons do with all, and open a file that gets the same
    number: nothing is done with that. Methods raise `OSError` where the receiver or the socket is gone.
    """

    def __init__(
        self, connected: socket.socket, starting: subprocess.Popen[bytes] | None = None
    ) -> None:
        """`starting`: the program at the other end, where it was just started."""
        self._whole = connected
        self._starting = starting
        self._is = os.fstat(connected.fileno())
        self._received = b""
        """What was received since the last whole line."""
        self.limit(SEND_LIMIT_S if starting is None else START_LIMIT_S)

    @property
    def _socket(self) -> socket.socket:
        if self._whole.fileno() >= 0:
            try:
                ours = os.path.samestat(os.fstat(self._whole.fileno()), self._is)
            except OSError:
                ours = False
            if not ours:
                self._whole.detach()
                raise OSError("the script has closed the descriptor of vitprof's connection")
        return self._whole

    def send(self, data: bytes) -> None:
        """Sends all of it. Raises `ConnectionError` where the program has gone, else another `OSError`."""
        try:
            self._socket.sendall(data, NO_SIGNAL)
        except ConnectionError as error:
            raise type(error)(GONE) from error

    def limit(self, seconds: float | None) -> None:
        """Sets the time (s) after which sending or reading fails."""
        self._socket.settimeout(seconds)

    def answers(self, limit_s: float) -> list[dict[str, Any]]:
        """Returns the objects, lines of JSON, that the program has sent; waits for them for at most
        `limit_s`. Raises `ConnectionError` where it has gone."""
        before_s = self._socket.gettimeout()
        self.limit(max(0.0, limit_s))
        try:
            part = self._socket.recv(4096)
        except (TimeoutError, BlockingIOError):
            return []
        except ConnectionError as error:
            raise type(error)(GONE) from error
        finally:
            self.limit(before_s)
        if not part:
            raise ConnectionResetError(GONE)
        if self._starting is not None and self._starting.poll() is not None:
            self._starting = None  # it has forked and runs on, detached
        self.limit(SEND_LIMIT_S)  # who answers has started
        *lines, self._received = (self._received + part).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Closes the socket, in this process only."""
        if self._starting is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._starting.wait(SEND_LIMIT_S)
        with contextlib.suppress(OSError):
            self._socket.close()

    def forget(self) -> None:
        """Closes the socket in a forked process."""
        if self._starting is not None:
            self._starting.returncode = 0  # not this process's child: nothing is to be waited for
        self.close()


def connect() -> Connection:
    """Returns a connection to the command around the script, else at once to a new collector. Raises `OSError`."""
    if path := os.environ.get(SOCKET):
        return connect_to_command(path)
    ours, theirs = map(above_standard_streams, socket.socketpair(socket.AF_UNIX))
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


def connect_to_command(path: str) -> Connection:
    """Returns a connection to the command that listens there. Raises `OSError`."""
    return Connection(connected_to(path))


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
