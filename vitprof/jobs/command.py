"""A user's own script as a job: its command, started so that its training is watched."""

import contextlib
import json
import math
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from vitprof.errors import JobError
from vitprof.home import open_log
from vitprof.jobs import trial_folder
from vitprof.jobs.collector import LOST, POLL_S, Listener, listen
from vitprof.jobs.unseen import error_line, why_failed, why_unseen
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import SEND_EVERY_S, Message, Note
from vitprof.store.chunks import n_rows

STARTUP = Path(__file__).parents[1] / "watch" / "startup"
"""The folder that comes first on PYTHONPATH: Python runs the `sitecustomize.py` in it."""
STOP_GRACE_S = 30.0
"""How long (s) a script may take to end after it was asked to, before it is killed: enough to write a checkpoint."""
LAST_WORDS_S = 10.0
"""How long (s) reading the last messages of a script that has ended may take."""
LOST_AFTER_S = 1.0
"""A script that runs on for so long (s) after its connection ended without a last message is partly watched."""
FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the script as well as to vitprof."""


class CommandRunner:
    """A running command, in the process group and with the input and output of this program. Raises `JobError`."""

    records_ranks = True
    """Whether the steps of all ranks of a distributed job are recorded."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        steps: int | None = None,
        detach_after: int | None = None,
        headroom: bool = False,
        on_steps: Callable[[Columns], object] | None = None,
        variables: Mapping[str, str] | None = None,
        listening: socket.socket | None = None,
        **process: Any,
    ) -> None:
        """`steps`: ends the script after that number; `detach_after`: stops watching then. `headroom`: measures it on
        kept batches. `on_steps` gets finished steps, in the listener's thread; `listening`: a socket to listen on;
        `process`: for `subprocess.Popen`.
        """
        self._listening = listening or listen("watch")
        self._directory = os.path.dirname(path := self._listening.getsockname())
        options = {"steps": steps, "detach_after": detach_after, "headroom": int(headroom)}
        asked = {
            f"VITPROF_WATCH_{name.upper()}": str(value) for name, value in options.items() if value
        }
        asked |= {"VITPROF_WATCH_RANKS": "1"} if self.records_ranks else {}
        environment = _watching(os.environ, path) | asked | dict(variables or {})
        self._closing = threading.Event()
        self._listener = Listener(self._connections(), str(os.getpid()), on_steps)
        try:
            self._process = subprocess.Popen(list(command), env=environment, **process)
        except OSError as error:
            self._closing.set()
            self._listener.join(LAST_WORDS_S)
            self._clean_up()
            # its directory
            missing = f" ({error.filename})" if error.filename not in (None, command[0]) else ""
            raise JobError(
                f"cannot start {command[0]}: {error.strerror or error}{missing}"
            ) from error
        self.pid = self._process.pid
        self._command = command
        self._asked = False
        """Whether the script was asked to end, or a signal that does so reached vitprof."""
        self._stop_by: float | None = None
        self._left = False  # the training process, with a last message
        self.unseen = partial(why_unseen, self._listener, command, self._directory, options)

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    @property
    def stopping(self) -> bool:
        """Returns whether vitprof asked the script to end; from then on it has `STOP_GRACE_S`."""
        return self._stop_by is not None

    @property
    def unobserved(self) -> bool:
        """Returns whether the training process was watched and has closed its connection."""
        return self._listener.places.found and not self._listener.listens

    def _connections(self) -> Iterator[socket.socket]:
        while not self._closing.is_set():
            try:
                yield self._listening.accept()[0]
            except TimeoutError:
                continue
            except OSError:
                return

    def messages(self) -> Iterator[Message | None]:
        silent_s = math.inf
        while self._process.poll() is None:
            quiet = self._listener.places.found and self._listener.listens and self._stop_by is None
            try:
                message = self._listener.inbox.get(timeout=POLL_S if quiet else SEND_EVERY_S)
            except queue.Empty:
                yield None
                continue
            silent_s = time.monotonic() if message is None else silent_s
            yield self._passed_on(message)
        went_on = time.monotonic() - silent_s > LOST_AFTER_S
        self._closing.set()
        self._listener.join(LAST_WORDS_S)
        while not self._listener.inbox.empty():
            yield self._passed_on(self._listener.inbox.get_nowait())
        found = self._listener.places.found
        if found and not self._left and (went_on or not (self._process.returncode or self._asked)):
            yield Note("facts", {"partly_watched": LOST})
        last = self._last()
        line = self._listener.places.unrecorded() if found else self.unseen()
        if line and last.values["status"] != "failed":
            yield Note("notice", {"line": line})
        yield last

    def _passed_on(self, message: Message | None) -> Message | None:
        """Returns the message, but for the training process's last one: the script may go on after that."""
        ends = isinstance(message, Note) and message.kind == "end"
        self._left |= ends
        return (
            Note("stage", {"name": "unwatched", "fraction": None, "message": ""})
            if ends
            else message
        )

    def _last(self) -> Note:
        code = self._process.returncode
        if self._asked or code in (-signal.SIGINT, 128 + signal.SIGINT):
            return Note("end", {"status": "stopped", "error": ""})
        if code:
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            why = why_failed(f"{self._directory}/socket.errors", self.pid, self._command)
            why = why or ("" if code < 0 or self._listener.places.found else PRINTED)
            return Note("end", {"status": "failed", "error": f"the script ended with {how}{why}"})
        return Note("end", {"status": "done", "error": ""})

    def ask_stop(self) -> None:
        """Sends the script SIGTERM, so that it can clean up; does nothing if it was already asked to end."""
        if self._stop_by is None:
            self.signalled(signal.SIGTERM)

    def signalled(self, number: int) -> None:
        """Notes a signal that vitprof received, and passes it on unless it is one that a terminal sends to both."""
        self._asked = True
        if number in FROM_THE_TERMINAL:
            return
        if self._stop_by is None:
            self._stop_by = time.monotonic() + STOP_GRACE_S
        self._signal(number)

    def kill(self) -> None:
        """Kills a script that was asked to end and has not within `STOP_GRACE_S`."""
        if self._stop_by is not None and time.monotonic() >= self._stop_by:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

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
    before = environment.get("PYTHONPATH")
    return {
        **{
            name: value
            for name, value in environment.items()
            if not name.startswith("VITPROF_WATCH_")
        },
        "VITPROF_WATCH_SOCKET": path,
        "VITPROF_WATCH_ROOT": str(STARTUP.parents[2]),
        "PYTHONPATH": os.pathsep.join([str(STARTUP), *([before] if before else [])]),
    }


class LoggedRunner(CommandRunner):
    """A running command without a terminal, which prints to `log`. Its run names it as `words`. Raises `JobError`."""

    def __init__(self, command: Sequence[str], words: str, log: Path) -> None:
        self._words = words
        with open_log(log) as out:
            super().__init__(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def messages(self) -> Iterator[Message | None]:
        yield Note("facts", {"command": self._words})
        yield from super().messages()


PRINTED = "; what it printed says why"
NOT_IN_A_LAYER = "cross-device link|too large for defined data type"


@dataclass(frozen=True)
class Trial:
    """The command of a trial, and what it changes."""

    command: Sequence[str]
    directory: str
    number: int
    steps: int
    arguments: Mapping[str, Any]
    """Arguments of the train DataLoader to change, by PyTorch's names."""
    place: str = ""
    """Where that loader is made (`vitprof.watch.trial.made_of`); "" in a first trial, which changes nothing."""
    where: str = ""
    nth: int | None = None
    """Which of the loaders made there; None: all of them."""
    cache_bytes: int | None = None
    """Memory for samples that are kept after they were first read; None: they are not kept."""
    stored: Mapping[str, Any] | None = None
    """The samples that its dataset is replaced by (`experiments.conversion.stored_as`); None: it is not."""
    remarks: tuple[str, ...] = ()
    """Lines on the setting for the user; they become notices of the run."""
    lists_changes: bool = False
    """Whether to report the files that are written or deleted."""
    isolation: str = trial_folder.IN_PLACE
    layered: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Returns whether the trial changes the script's loader."""
        return bool(self.arguments) or self.cache_bytes is not None or self.stored is not None

    @property
    def variables(self) -> dict[str, str]:
        """Returns the environment variables that the trial adds for the script."""
        changed = ("place", "nth", "arguments", "cache_bytes", "stored") if self.changes else ()
        wanted = {name: getattr(self, name) for name in changed}
        return {"VITPROF_TRIAL": str(self.number), "VITPROF_WATCH_OVERRIDES": json.dumps(wanted)}


class TrialRunner(CommandRunner):
    """The running script, in a session of its own, without a terminal; it prints to `log`. Raises `JobError`."""

    records_ranks = False  # a setting is compared by rank 0

    def __init__(self, trial: Trial, log: Path, changes: list[str] | None = None) -> None:
        """`changes`: the list to which `close` adds the files that were written or deleted, with `lists_changes`."""
        self._trial = trial
        self._log = log
        self._changes = changes if changes is not None else []
        self._n = 0
        self._wrong = ""
        self._end_by: float | None = None
        """When to kill a script that has made its steps and has not ended, on the monotonic clock (s)."""
        looked_at = (
            trial_folder.named_folders(trial.command, trial.directory)
            if trial.lists_changes
            else None
        )
        with open_log(log) as out, contextlib.ExitStack() as unless_started:
            folder = self._folder = trial_folder.TrialFolder(
                trial.directory, trial.isolation, trial.layered, looked_at
            )
            unless_started.callback(folder.remove)
            listening = listen("trial")
            directory = os.path.dirname(listening.getsockname())
            self._reports = Path(directory) / "reports"
            under = os.path.realpath(folder.cwd) if trial.lists_changes else ""
            reporting = {
                "VITPROF_WATCH_TELL": str(self._reports),
                "VITPROF_WATCH_OPENED_UNDER": under,
            }
            super().__init__(
                folder.command(trial.command, directory),
                steps=trial.steps,
                variables=trial.variables | reporting,
                listening=listening,
                cwd=folder.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            unless_started.pop_all()

    def messages(self) -> Iterator[Message | None]:
        for message in super().messages():
            if message is None:
                self._end_what_hangs()
                yield None
            elif not isinstance(message, Note):
                yield self._steps(message)
                self._n += n_rows(message)
                yield Note(
                    "stage",
                    {"name": "training", "fraction": self._n / self._trial.steps, "message": ""},
                )
            elif message.kind == "environment":
                yield message
                yield from (Note("notice", {"line": line}) for line in self._trial.remarks)
                self._check(message.values.get("watched") or {})
            else:
                if message.kind == "end":
                    yield from (Note("notice", {"line": line}) for line in self._notices())
                yield message

    def _steps(self, steps: Columns) -> Columns:
        """Returns the steps; where samples are kept, the first epoch, which reads them, is warm-up."""
        if self._trial.cache_bytes is None:
            return steps
        return {**steps, "warmup": np.where(steps["epoch"] == 0, 1.0, steps["warmup"])}

    def _check(self, watched: Mapping[str, Any]) -> None:
        trial = self._trial
        here = watched.get("made_where")
        if not trial.changes:
            return
        if not watched.get("made_changed"):
            other = ", in another way or for another dataset" if here == trial.where else ""
            problem = next((text for about, text in self._lines() if about == "problem"), "")
            why = (
                problem
                or f"the first trial's loader was made at {trial.where}, this one's at {here}{other}"
            )
            self._wrong = f"the setting was not applied to the loader that trains: {why}"
        elif differ := [
            name for name, value in trial.arguments.items() if _is_other(watched, name, value)
        ]:
            self._wrong = f"the script sets {', '.join(differ)} itself after it has made its loader"
        if self._wrong:
            self._signal(signal.SIGTERM)

    def _end_what_hangs(self) -> None:
        """Kills a script that should have ended: processes of a distributed job may wait for one that has ended."""
        if self._wrong or self._n >= self._trial.steps:
            self._end_by = self._end_by or time.monotonic() + STOP_GRACE_S
            if time.monotonic() >= self._end_by:
                self._signal(signal.SIGKILL)

    def _last(self) -> Note:
        if self._wrong:
            return Note("end", {"status": "failed", "error": self._wrong})
        # how a script that was cut off ends does not matter
        if self._n >= self._trial.steps:
            return Note("end", {"status": "done", "error": ""})
        last = super()._last()
        error = last.values["error"].removesuffix(PRINTED)
        line = error_line(self._log)
        if last.values["status"] == "done":
            # where nothing was seen, there is nothing to compare
            error = self.unseen()
            line = ""
        if not error:
            return last
        error += "" if line in error else f": {line}"
        if self._trial.isolation == trial_folder.LAYER and re.search(NOT_IN_A_LAYER, line):
            error += " (in a layer that cannot be done: begin anew with --in-place)"
        return Note("end", {"status": "failed", "error": f"{error}; its log is {self._log}"})

    def close(self) -> str:
        if self.returncode is None:  # its messages are no longer read
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_GRACE_S)
        self._signal(signal.SIGKILL)  # its processes that outlived it
        self._process.wait()
        self._end_others()
        if self._trial.lists_changes:
            self._changes += self._folder.changes(
                [text for about, text in self._lines() if about == "opened"]
            )
        why = super().close()
        self._folder.remove()
        return why

    def _end_others(self) -> None:
        """Kills the processes of the script that have left its session: they still have its environment."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("VITPROF_WATCH_TELL") == str(self._reports):
                    process.kill()

    def _notices(self) -> list[str]:
        lines = list(dict.fromkeys(text for about, text in self._lines() if about == "notice"))
        if (
            self._listener.places.found
            and not self._wrong
            and self._n < self._trial.steps
            and self.returncode == 0
        ):
            lines.append(f"the script ended by itself after {self._n} of {self._trial.steps} steps")
        return lines

    def _lines(self) -> list[tuple[str, str]]:
        found = []
        with contextlib.suppress(OSError):
            for line in self._reports.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    about, text = json.loads(line)
                    found.append((str(about), str(text)))
        return found

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _is_other(watched: Mapping[str, Any], name: str, value: Any) -> bool:
    name = "start_method" if name == "multiprocessing_context" else name
    return (
        name in watched
        and watched[name] != value
        and not (name == "prefetch_factor" and value is None)
    )
