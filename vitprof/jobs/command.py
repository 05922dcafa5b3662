"""A user's own script as a job: its command, started with the watching in front of it."""

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
from vitprof.engine.protocol import SEND_EVERY_S, Message, Note, Steps
from vitprof.errors import JobError
from vitprof.home import temporary_prefix
from vitprof.jobs.listener import Listener

STARTUP = Path(vitprof.__file__).parent / "watch" / "startup"
"""Comes first on PYTHONPATH: Python runs the `sitecustomize.py` in it."""
STOP_GRACE_S = 30.0
"""How long a script may take after a wish to stop before it is ended: enough to write a checkpoint."""
LAST_WORDS_S = 10.0
"""How long what a script told may take to be read when it has ended."""
FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the script as well."""
NOT_WATCHED = (
    "no training was seen: vitprof watches a loop over a PyTorch DataLoader in which an optimizer steps; see the "
    "script's own output for what happened"
)


class CommandRunner:
    """A command under way, in a process group of its own; input and output stay those of the terminal.

    Raises `JobError` where it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        steps: int | None = None,
        detach_after: int | None = None,
        headroom: bool = False,
        on_steps: Callable[[Steps], object] | None = None,
        variables: Mapping[str, str] | None = None,
        **process: Any,
    ) -> None:
        """`steps`: after so many the script is ended; `detach_after`: after so many it goes on unobserved; `headroom`:
        some of its batches are given again. `on_steps` is called with finished steps as they come, in a thread.

        `variables` are more of its environment, `process` more arguments of `subprocess.Popen`.
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
        """Whether somebody wants the script to end."""
        self._stop_by: float | None = None
        self._closing = threading.Event()
        self._listener = Listener(self._connections(), str(self.pid), on_steps)

    @property
    def returncode(self) -> int | None:
        """Returns the command's exit status; None while it runs."""
        return self._process.poll()

    @property
    def stopping(self) -> bool:
        """Returns whether the script was asked to end, and its time for that runs."""
        return self._stop_by is not None

    @property
    def unobserved(self) -> bool:
        """Returns whether the training process was watched and said that it tells no more."""
        return self._listener.heard and not self._listener.listens

    def _connections(self) -> Iterator[socket.socket]:
        """Yields whoever connects, until the command has ended."""
        while not self._closing.is_set():
            try:
                yield self._listening.accept()[0]
            except TimeoutError:
                continue
            except OSError:
                return

    def messages(self) -> Iterator[Message | None]:
        while self._process.poll() is None:
            try:
                yield self._listener.inbox.get(timeout=SEND_EVERY_S)
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
        """Asks the script to end, as `kill` would: it may put its things in order. Once: it was told of a signal."""
        if self._stop_by is None:
            self.signalled(signal.SIGTERM)

    def signalled(self, number: int) -> None:
        """Takes note of a signal that came to vitprof, and passes it on where no terminal does that. The script ends as
        it would by itself, and has its time for it.
        """
        self._asked = True
        if number in FROM_THE_TERMINAL:
            return
        if self._stop_by is None:
            self._stop_by = time.monotonic() + STOP_GRACE_S
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends a script that was asked to end and had its time. Any other goes on, whatever happens to vitprof."""
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
        """Waits for the script's end without anybody who takes its messages."""
        for _ in self.messages():
            self.kill()
        self.close()

    def _clean_up(self) -> None:
        self._listening.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _watching(environment: os._Environ[str], path: str) -> dict[str, str]:
    """Returns the environment in which each Python process looks for a training to watch."""
    before = environment.get("PYTHONPATH")
    return {
        **environment,
        "VITPROF_WATCH_SOCKET": path,
        "VITPROF_WATCH_ROOT": str(STARTUP.parents[2]),
        "PYTHONPATH": os.pathsep.join([str(STARTUP), *([before] if before else [])]),
    }
