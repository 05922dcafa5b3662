"""A trial of a tournament on a user's own script: a run of some steps with other arguments for its DataLoader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitprof.home import open_log, temporary_prefix
from vitprof.jobs.command import NOT_WATCHED, STOP_GRACE_S, CommandRunner
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note
from vitprof.store.chunks import n_rows

LOG_TAIL_BYTES = 64 << 10
ERROR_LINE = re.compile(r"(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*")
"""A traceback's last line; launchers such as torchrun print more after it."""


@dataclass(frozen=True)
class Trial:
    """The command of a trial, and what it changes."""

    command: Sequence[str]
    directory: str
    number: int
    """The trial's number, from 1; the script finds it in VITPROF_TRIAL."""
    steps: int
    """Training steps after which the script is ended."""
    arguments: Mapping[str, Any]
    """Arguments of the train DataLoader to change, by PyTorch's names."""
    place: str = ""
    """Where that loader is made (`vitprof.watch.trial.made_of`); "" in a first trial, which changes nothing."""
    where: str = ""
    """The same for people: "train.py:88"."""
    nth: int | None = None
    """Which of the loaders made there; None: all of them."""
    cache_bytes: int | None = None
    """Memory for samples that are kept after they were first read; None: they are not kept."""
    remarks: tuple[str, ...] = ()
    """Lines on the setting for the user; they become notices of the run."""
    lists_opened: bool = False
    """Whether to report files that are opened for writing."""

    @property
    def changes(self) -> bool:
        """Returns whether the trial changes the script's loader."""
        return bool(self.arguments) or self.cache_bytes is not None

    @property
    def variables(self) -> dict[str, str]:
        """Returns the environment variables that the trial adds for the script."""
        wanted: dict[str, Any] = {}
        if self.changes:
            wanted = {"place": self.place, "nth": self.nth, "arguments": dict(self.arguments)}
            wanted["cache_bytes"] = self.cache_bytes
        variables = {"VITPROF_TRIAL": str(self.number), "VITPROF_WATCH_OVERRIDES": json.dumps(wanted)}
        if self.lists_opened:
            variables["VITPROF_WATCH_OPENED_UNDER"] = os.path.realpath(self.directory)
        return variables


class TrialRunner(CommandRunner):
    """The running script, in a session of its own, without a terminal: what it prints goes to `log`.

    Raises `JobError` where it cannot be started.
    """

    def __init__(self, trial: Trial, log: Path, opened: list[str] | None = None) -> None:
        """`opened`: the list to which `close` adds the files that were opened for writing, with `lists_opened`."""
        self._trial, self._log, self._opened = trial, log, opened if opened is not None else []
        self._n = 0
        """Steps reported so far."""
        self._wrong = ""
        """Why the trial does not measure its setting; "" where it does."""
        self._end_by: float | None = None
        """When to kill a script that has made its steps and has not ended, on the monotonic clock (s)."""
        handle, name = tempfile.mkstemp(prefix=temporary_prefix("trial"))
        os.close(handle)
        self._reports = Path(name)
        try:
            with open_log(log) as out:
                super().__init__(
                    trial.command,
                    steps=trial.steps,
                    variables={**trial.variables, "VITPROF_WATCH_TELL": name},
                    cwd=trial.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except BaseException:
            self._reports.unlink(missing_ok=True)
            raise

    def messages(self) -> Iterator[Message | None]:
        for message in super().messages():
            if message is None:
                self._end_what_hangs()
                yield None
            elif not isinstance(message, Note):
                yield self._steps(message)
                self._n += n_rows(message)
                yield Note("stage", {"name": "training", "fraction": self._n / self._trial.steps, "message": ""})
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
        """Ends a trial that does not measure its setting."""
        trial = self._trial
        if not trial.changes:
            return
        if not watched.get("made_changed"):
            here = watched.get("made_where")
            other = ", in another way or for another dataset" if here == trial.where else ""
            why = self._problem() or f"the first trial's loader was made at {trial.where}, this one's at {here}{other}"
            self._wrong = f"the setting was not applied to the loader that trains: {why}"
        elif differ := [name for name, value in trial.arguments.items() if _is_other(watched, name, value)]:
            self._wrong = f"the script sets {', '.join(differ)} itself after it has made its loader"
        if self._wrong:
            self._signal(signal.SIGTERM)

    def _problem(self) -> str:
        return next((text for about, text in self._lines() if about == "problem"), "")

    def _end_what_hangs(self) -> None:
        """Kills a script that should have ended: processes of a distributed job may wait for one that has ended."""
        if self._wrong or self._n >= self._trial.steps:
            now = time.monotonic()
            self._end_by = now + STOP_GRACE_S if self._end_by is None else self._end_by
            if now >= self._end_by:
                self._signal(signal.SIGKILL)

    def _last(self) -> Note:
        if self._wrong:
            return Note("end", {"status": "failed", "error": self._wrong})
        if self._n >= self._trial.steps:  # how a script that was cut off ends does not matter
            return Note("end", {"status": "done", "error": ""})
        last = super()._last()
        if last.values["status"] == "failed" and last.values["error"] != NOT_WATCHED:
            last_error = _error_line(self._log)
            error = f"{last.values['error']}{f': {last_error}' if last_error else ''}; its log is {self._log}"
            return Note("end", {"status": "failed", "error": error})
        if last.values["error"] == NOT_WATCHED:
            return Note("end", {"status": "failed", "error": f"{NOT_WATCHED}, {self._log}"})
        return last

    def ask_stop(self) -> None:
        self._asked = True
        self._stop_by = time.monotonic() + STOP_GRACE_S
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        if self._stop_by is not None and time.monotonic() >= self._stop_by:
            self._signal(signal.SIGKILL)

    def close(self) -> str:
        if self.returncode is None:  # its messages are no longer read
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_GRACE_S)
        self._signal(signal.SIGKILL)  # its processes that outlived it
        why = super().close()
        self._opened += [text for about, text in self._lines() if about == "opened"]
        self._reports.unlink(missing_ok=True)
        return why

    def _notices(self) -> list[str]:
        """Returns lines for the user."""
        lines = list(dict.fromkeys(text for about, text in self._lines() if about == "notice"))
        if self._listener.heard and not self._wrong and self._n < self._trial.steps and self.returncode == 0:
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
    """Returns whether the train loader has another value than the one given; False for arguments it did not report."""
    name = "start_method" if name == "multiprocessing_context" else name
    return name in watched and watched[name] != value and not (name == "prefetch_factor" and value is None)


def _error_line(log: Path) -> str:
    """Returns the last line of a log that names an error, else its last line; at most 400 characters."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        of_errors = [line for line in lines if ERROR_LINE.fullmatch(line)]
        return (of_errors or lines or [""])[-1][:400]
    return ""
