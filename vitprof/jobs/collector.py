"""A script that watches itself (`vitprof.watch`) as a job: this program is started beside it, and records it.

The script holds the other end of a socket (`watch/connection.py`). It sends what any job sends, and may begin again
after its "end": a loop in a notebook that is run once more. It is told, as a line of JSON, the number of the run, or
why there is none. Where the script ends, is killed or hangs up, what came until then is recorded, and this ends too.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil

from vitprof.config.own_script import own_config
from vitprof.engine.protocol import SEND_EVERY_S, Message, Note
from vitprof.errors import VitprofError, one_line
from vitprof.jobs.listener import Listener
from vitprof.jobs.supervisor import JobRecorder, create_run
from vitprof.store import RunStore

LOOK_EVERY_S = 1.0
"""How often to look whether the script is still there: a process that it left behind may hold the socket open."""
GONE = "the script's process ended without a last message"


class ScriptRunner:
    """A script under way that this program did not start and does not end."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._listener = Listener([connection], str(pid))
        self._first: list[Message] = []
        """What came before the training was described, and that."""
        self._looked_s = time.monotonic()
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def begins(self) -> dict[str, Any] | None:
        """Waits until a training is described ("environment"), and returns that; None where none will come."""
        while True:
            message = self._get()
            if message is None and self._is_over():
                return None
            if message is not None:
                self._first.append(message)
            if isinstance(message, Note) and message.kind == "environment":
                return message.values

    def messages(self) -> Iterator[Message | None]:
        while True:
            message = self._first.pop(0) if self._first else self._get()
            if message is None and self._is_over():
                yield Note("end", {"status": "failed", "error": GONE})
                return
            yield message
            if isinstance(message, Note) and message.kind == "end":
                return

    def ask_stop(self) -> None:
        """Does nothing: the script is not ours to end."""

    def kill(self) -> None:
        """Does nothing, for the same reason."""

    def close(self) -> str:
        return GONE

    def tell(self, **values: object) -> None:
        """Tells the script, if it still listens."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(values).encode() + b"\n")

    def _get(self) -> Message | None:
        try:
            return self._listener.inbox.get(timeout=SEND_EVERY_S)
        except queue.Empty:
            return None

    @property
    def over(self) -> bool:
        """Returns whether the script is gone; what it said last may still wait."""
        return self._gone() or not self._listener.listens

    def _is_over(self) -> bool:
        """Returns whether nothing more can come."""
        return self.over and self._listener.inbox.empty()

    def _gone(self) -> bool:
        now = time.monotonic()
        if now - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now
        script = self._process
        try:
            return script is None or not script.is_running() or bool(script.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:  # not ours to look at: the socket's end will tell
            return False


def record(runner: ScriptRunner) -> None:
    """Records all that the script trains as one run. Raises `VitprofError`."""
    described = runner.begins()
    if described is None:
        return
    with contextlib.closing(RunStore()) as store:
        run_id = create_run(store, own_config(described["watched"]["name"]), lambda: runner.over)
        runner.tell(run=run_id)
        recorder = JobRecorder(store, run_id, threading.Event(), start=lambda: runner)
        try:
            while described is not None:
                recorder.run()
                described = runner.begins()
        finally:
            recorder.leave()


def main() -> None:
    """Records the script whose socket (a descriptor) and process id are the arguments."""
    runner = ScriptRunner(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    try:
        record(runner)
    except VitprofError as error:
        runner.tell(error=one_line(error))
    except Exception as error:  # nobody sees this program's standard error
        runner.tell(error=f"{type(error).__name__}: {one_line(error)}")
        raise
