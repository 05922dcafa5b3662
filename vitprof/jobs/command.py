"""A user's own script as a job: its command, started so that its training is watched."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import vitprof
from vitprof.errors import JobError
from vitprof.home import temporary_prefix
from vitprof.jobs.listener import POLL_S, Listener
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import SEND_EVERY_S, Message, Note

STARTUP = Path(vitprof.__file__).parent / "watch" / "startup"
"""The folder that comes first on PYTHONPATH: Python runs the `sitecustomize.py` in it."""
STOP_GRACE_S = 30.0
"""How long (s) a script may take to end after it was asked to, before it is killed: enough to write a checkpoint."""
LAST_WORDS_S = 10.0
"""How long (s) reading the last messages of a script that has ended may take."""
FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the script as well as to vitprof."""
NOT_WATCHED = (
    "no training was seen: vitprof watches a loop over a PyTorch DataLoader in which an optimizer steps; see the "
    "script's own output for what happened"
)


class CommandRunner:
    """A running command, in the process group, and with the input and output, of this program.

    Raises `JobError` where it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        steps: int | None = None,
        detach_after: int | None = None,
        headroom: bool = False,
        on_steps: Callable[[Columns], object] | None = None,
        variables: Mapping[str, str] | None = None,
        **process: Any,
    ) -> None:
        """`steps`: ends the script after that number of steps. `detach_after`: stops watching after that number.
        `headroom`: measures the headroom, by serving kept batches again in some of the steps. `on_steps` is called
        with finished steps as they arrive, in the listener's thread.

        `variables` are added to the command's environment, `process` to the arguments of `subprocess.Popen`.
        """
        self._directory = tempfile.mkdtemp(prefix=temporary_prefix("watch"))
        self._listening = socket.socket(socket.AF_UNIX)
        path = str(Path(self._directory) / "socket")
        self._listening.bind(path)
        self._listening.listen()
        self._listening.settimeout(SEND_EVERY_S)
        environment = _watching(os.environ, path) | dict(variables or {})
        if steps is not None:
            environment["VITPROF_WATCH_STEPS"] = str(steps)
        if detach_after is not None:
            environment["VITPROF_WATCH_DETACH_AFTER"] = str(detach_after)
        if headroom:
            environment["VITPROF_WATCH_HEADROOM"] = "1"
        try:
            self._process = subprocess.Popen(list(command), env=environment, **process)
        except OSError as error:
            self._clean_up()
            missing = f" ({error.filename})" if error.filename not in (None, command[0]) else ""  # its directory
            raise JobError(f"cannot start {command[0]}: {error.strerror or error}{missing}") from error
        self.pid = self._process.pid
        self._asked = False
        """Whether the script was asked to end, or a signal that does so reached vitprof."""
        self._stop_by: float | None = None
        self._closing = threading.Event()
        self._listener = Listener(self._connections(), str(self.pid), on_steps)

    @property
    def returncode(self) -> int | None:
        """Returns the command's exit status; None while it runs."""
        return self._process.poll()

    @property
    def stopping(self) -> bool:
        """Returns whether vitprof asked the script to end; from then on it has `STOP_GRACE_S`."""
        return self._stop_by is not None

    @property
    def unobserved(self) -> bool:
        """Returns whether the training process was watched and has closed its connection."""
        return self._listener.heard and not self._listener.listens

    def _connections(self) -> Iterator[socket.socket]:
        """Yields the connections that processes of the command make, until the command has ended."""
        while not self._closing.is_set():
            try:
                yield self._listening.accept()[0]
            except TimeoutError:
                continue
            except OSError:
                return

    def messages(self) -> Iterator[Message | None]:
        while self._process.poll() is None:
            quiet = self._listener.heard and self._listener.listens and self._stop_by is None
            try:
                yield self._listener.inbox.get(timeout=POLL_S if quiet else SEND_EVERY_S)
            except queue.Empty:
                yield None
        self._closing.set()
        self._listener.join(LAST_WORDS_S)
        while not self._listener.inbox.empty():
            yield self._listener.inbox.get_nowait()
        yield self._last()

    def _last(self) -> Note:
        code = self._process.returncode
        if self._asked or code in (-signal.SIGINT, 128 + signal.SIGINT):
            return Note("end", {"status": "stopped", "error": ""})
        if code:
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return Note("end", {"status": "failed", "error": f"the script ended with {how}"})
        if not self._listener.heard:
            return Note("end", {"status": "failed", "error": NOT_WATCHED})
        return Note("end", {"status": "done", "error": ""})

    def ask_stop(self) -> None:
        """Sends the script SIGTERM, so that it can clean up; does nothing if it was already asked to end."""
        if self._stop_by is None:
            self.signalled(signal.SIGTERM)

    def signalled(self, number: int) -> None:
        """Notes a signal that vitprof received, and passes it on unless it is one that a terminal sends to both.

        A script that it was passed on to has `STOP_GRACE_S` to end in its own way.
        """
        self._asked = True
        if number in FROM_THE_TERMINAL:
            return
        if self._stop_by is None:
            self._stop_by = time.monotonic() + STOP_GRACE_S
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kills a script that was asked to end and has not within `STOP_GRACE_S`. Any other script goes on, whatever
        happens to vitprof.
        """
        if self._stop_by is not None and time.monotonic() >= self._stop_by:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def close(self) -> str:
        self._closing.set()
        self._process.wait()
        self._listener.join(LAST_WORDS_S)
        self._clean_up()
        return "the script ended without a last message"

    def finish(self) -> None:
        """Waits for the script's end and drops its messages."""
        for _ in self.messages():
            self.kill()
        self.close()

    def _clean_up(self) -> None:
        self._listening.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _watching(environment: os._Environ[str], path: str) -> dict[str, str]:
    """Returns an environment that makes every Python process look for a training to watch."""
    before = environment.get("PYTHONPATH")
    return {
        **environment,
        "VITPROF_WATCH_SOCKET": path,
        "VITPROF_WATCH_ROOT": str(STARTUP.parents[2]),
        "PYTHONPATH": os.pathsep.join([str(STARTUP), *([before] if before else [])]),
    }
