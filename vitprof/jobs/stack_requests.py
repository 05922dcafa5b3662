"""Asks processes of a script where they are in their Python code: the other end of
`watch.stack_answers`."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vitprof.telemetry.looks import Stack
from vitprof.watch.events import stack_address

UNANSWERED_S = 1.0
"""A process that has not answered for so long (s) has no thread that gets Python's lock: a thread
gives it away each 5 ms where another one waits (sys.getswitchinterval)."""
PART_BYTES = 1 << 16


@dataclass(slots=True)
class _Request:
    connection: socket.socket
    asked_s: float
    received: bytes = b""


class StackRequests:
    """Requests to some processes. Nothing here waits for an answer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pending: dict[int, _Request] = {}

    def ask(self, pids: Iterable[int]) -> None:
        """Asks processes, but for those that were asked and have not answered. One that cannot be
        asked says nothing."""
        for pid in pids:
            if pid in self._pending:
                continue
            connection = _connected(pid)
            if connection is not None:
                self._pending[pid] = _Request(connection, self._clock())

    def answers(self) -> dict[int, Stack]:
        """Returns what came since the last call, by process."""
        found = {}
        for pid, request in list(self._pending.items()):
            stack = _answer(request)
            if stack is not None or request.connection.fileno() < 0:
                del self._pending[pid]
            if stack is not None:
                found[pid] = stack
        return found

    @property
    def unanswered(self) -> frozenset[int]:
        """Returns the processes that were asked at least `UNANSWERED_S` ago, and have not answered."""
        latest_s = self._clock() - UNANSWERED_S
        return frozenset(pid for pid, each in self._pending.items() if each.asked_s <= latest_s)

    def drop(self) -> None:
        """Waits for no answer any more."""
        for request in self._pending.values():
            request.connection.close()
        self._pending.clear()


def _connected(pid: int) -> socket.socket | None:
    """Returns a connection to a process; None where it does not listen."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError):
        return None
    connection.setblocking(False)
    try:
        connection.connect(stack_address(pid))
        size = struct.calcsize("3i")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError:
        connection.close()
        return None
    # of two containers with one network each may have such a process
    if struct.unpack("3i", peer)[0] != pid:
        connection.close()
        return None
    return connection


def _answer(request: _Request) -> Stack | None:
    """Returns the answer to a request once it is complete; closes the connection where it is over."""
    try:
        while part := request.connection.recv(PART_BYTES):
            request.received += part
    except BlockingIOError:
        return None
    except OSError:
        request.connection.close()
        return None
    request.connection.close()
    try:
        told = json.loads(request.received)
        frames = tuple(str(frame) for frame in told["frames"])
        return Stack(str(told["own"]), str(told["calls"]), frames, str(told["opened"]))
    except (ValueError, KeyError, TypeError):  # it has ended meanwhile
        return None
