"""Reads what a training process sends over its socket, whether vitprof started it or was started by it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterable

from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note, read_messages

POLL_S = 0.5
"""How long (s) to wait for a message before looking whether the script is still there. Its end is told at once."""


class Listener:
    """A thread that reads the first of `connections` that sends anything, to its end."""

    def __init__(
        self, connections: Iterable[socket.socket], name: str, on_steps: Callable[[Columns], object] | None = None
    ) -> None:
        """`on_steps` is called in the thread with finished steps as they arrive."""
        self._connections, self._on_steps = connections, on_steps
        self.inbox: queue.Queue[Message | None] = queue.Queue()
        """The messages, in order, and None when no more can come."""
        self.heard = False
        """Whether any message has come."""
        self.listens = True
        """False once no more messages can come."""
        self._thread = threading.Thread(target=self._run, name=f"vitprof-reader-{name}", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits until no more messages can come, for at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._read()
        finally:
            self.listens = False
            self.inbox.put(None)

    def _read(self) -> None:
        for connection in self._connections:
            connection.setblocking(True)
            with connection, connection.makefile("rb") as stream, contextlib.suppress(ValueError, OSError):
                for message in read_messages(stream):
                    self.heard = True
                    self.inbox.put(message)
                    if self._on_steps is not None and not isinstance(message, Note):
                        self._on_steps(message)
            if self.heard:  # of several processes that train, only the first is recorded
                return
