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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitprof.analysis.tournament import pixels
from vitprof.config.script_decoders import TriedDecoder
from vitprof.errors import JobError
from vitprof.home import open_log
from vitprof.jobs import trial_folder
from vitprof.jobs.collector import LOST, MESSAGE_WAIT_S, Listener, connections, listen
from vitprof.jobs.event_files import EventFiles
from vitprof.jobs.killed_jobs import MemoryWitness
from vitprof.jobs.left_behind import LeftBehind
from vitprof.jobs.signals import END, FROM_THE_TERMINAL, shares_group, signal_name
from vitprof.jobs.unseen import error_line, why_failed, why_unseen, worker_signal
from vitprof.jobs.ways_out import ways_out
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import SEND_EVERY_S, Message, Note
from vitprof.program import why_not_started
from vitprof.recording.decoded_files import DecodedFiles
from vitprof.store.chunks import n_rows

STARTUP = Path(__file__).parents[1] / "watch" / "startup"
"""The folder that comes first on PYTHONPATH: Python runs the `sitecustomize.py` in it."""
STOP_GRACE_S = 30.0
"""How long (s) a script may take to end after a request, before it is killed: enough to write a
checkpoint."""
LAST_WORDS_S = 10.0
"""How long (s) reading the last messages of a script that has ended may take."""
LOST_AFTER_S = 1.0
"""A script is partly watched if it runs on for so long (s) after its connection ended without a last
message."""


class CommandRunner:
    """A running command, in the process group and with the input and output of this program.

    Raises `JobError` where it cannot be started.
    """

    records_ranks = True
    """Whether the steps of all ranks of a distributed job are recorded."""
    why_unseen_for: tuple[str, ...] = ("done", "stopped")
    """How a run has ended that says why no training was seen."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        steps: int | None = None,
        detach_after: int | None = None,
        headroom: bool = False,
        causal: bool = False,
        on_steps: Callable[[Columns], object] | None = None,
        events: EventFiles | None = None,
        variables: Mapping[str, str] | None = None,
        inherited: Mapping[str, str] | None = None,
        listening: socket.socket | None = None,
        **process: Any,
    ) -> None:
        """`steps`: ends the script after that number of steps. `detach_after`: stops watching after
        that number. `headroom`: measures the headroom, by serving kept batches again in some of the
        steps. `causal`: measures a causal profile, by pauses while a stage seems faster. `on_steps` is
        called with finished steps as they arrive, in the listener's thread.
        `events`: keeps the events of the script's processes; None: nobody keeps them.

        `variables` are added to the command's environment, `inherited` (default: this program's own).
        `listening`: the socket to listen on, which this object closes; default: a new one.
        `process`: arguments of `subprocess.Popen`.
        """
        self._listening = listening or listen("watch")
        path = self._listening.getsockname()
        self._directory = os.path.dirname(path)
        options = {
            "steps": steps,
            "detach_after": detach_after,
            "headroom": int(headroom),
            "causal": f"{self._directory}/owed" if causal else "",
        }
        requested = {
            f"VITPROF_WATCH_{name.upper()}": str(value) for name, value in options.items() if value
        }
        if self.records_ranks:
            requested["VITPROF_WATCH_RANKS"] = "1"
        environment = _watching(inherited or os.environ, path) | requested | dict(variables or {})
        self._closing = threading.Event()
        connected = connections(self._listening, self._closing)
        self._listener = Listener(connected, str(os.getpid()), on_steps, events)
        try:
            self._process = subprocess.Popen(list(command), env=environment, **process)
        except OSError as error:
            self._closing.set()
            self._listener.join(LAST_WORDS_S)
            self._clean_up()
            missing = ""
            # another file than the program is its directory
            if error.filename not in (None, command[0]):
                missing = f" ({error.filename})"
            why = why_not_started(command[0], error)
            raise JobError(f"cannot start {command[0]}: {why}{missing}") from error
        self.pid = self._process.pid
        self._memory = MemoryWitness(self.pid)
        self._command = command
        self._end_requested = False
        """Whether the script was asked to end, or a signal that does so reached vitprof."""
        self._stop_by: float | None = None
        """When to kill a script that was asked to end, on the monotonic clock (s); None: it was not."""
        self._sent_end = False
        """Whether the training process has sent its last message."""
        self.unseen = partial(why_unseen, self._listener, command, self._directory, options)
        """Returns why no training was seen; "" where it was."""

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
        return self._listener.places.has_first and not self._listener.listens

    def messages(self) -> Iterator[Message | None]:
        """Yields the messages of the first rank and the steps of the others, then how the command
        ended; None at least every `MESSAGE_WAIT_S` where there are none.
        """
        listener = self._listener
        disconnected_s = math.inf
        while self._process.poll() is None:
            try:
                message = listener.inbox.get(timeout=self._patience_s())
            except queue.Empty:
                yield None
                continue
            if message is None:
                disconnected_s = time.monotonic()
            elif isinstance(message, Note) and message.kind == "restarted":
                disconnected_s = math.inf
            yield self._passed_on(message)
        went_on = time.monotonic() - disconnected_s > LOST_AFTER_S
        self._closing.set()
        listener.join(LAST_WORDS_S)
        while not listener.inbox.empty():
            yield self._passed_on(listener.inbox.get_nowait())
        is_watched = listener.places.has_first
        ended_by_itself = not (self._process.returncode or self._end_requested)
        if is_watched and not self._sent_end and (went_on or ended_by_itself):
            yield Note("facts", {"partly_watched": LOST})
        last = self._last()
        if restarted := listener.places.restarted():
            yield Note("notice", {"line": restarted})
        status = last.values["status"]
        if is_watched:
            line = listener.places.unrecorded()
        else:
            line = self.unseen() if status in self.why_unseen_for else ""
        if line and status != "failed":
            yield Note("notice", {"line": line})
        yield last

    def _patience_s(self) -> float:
        """Returns how long to wait for a message: longer while steps arrive and no end is expected."""
        is_training = self._listener.places.has_first and self._listener.listens
        return MESSAGE_WAIT_S if is_training and self._stop_by is None else SEND_EVERY_S

    def _passed_on(self, message: Message | None) -> Message | None:
        """Returns the message; a stage in place of the training process's last one, after which the
        script may go on, or be started again by its launcher.
        """
        if isinstance(message, Note) and message.kind == "end":
            self._sent_end = True
            return Note("stage", {"name": "unwatched", "fraction": None, "message": ""})
        if isinstance(message, Note) and message.kind == "restarted":
            self._sent_end = False
            return Note("facts", message.values)
        return message

    def _last(self) -> Note:
        code = self._process.returncode
        if self._end_requested or code in (-signal.SIGINT, 128 + signal.SIGINT):
            return Note("end", {"status": "stopped", "error": ""})
        if code:
            how = self._signal_words(-code) if code < 0 else f"exit status {code}"
            why = why_failed(f"{self._directory}/socket.errors", self.pid, self._command)
            number = worker_signal(why)
            if number is not None:
                why += f" That is {self._signal_words(number)}"
            if not why and code > 0 and not self._listener.places.has_first:
                why = PRINTED
            return Note("end", {"status": "failed", "error": f"the script ended with {how}{why}"})
        return Note("end", {"status": "done", "error": ""})

    def _signal_words(self, number: int) -> str:
        """Returns the name of a signal that ended the script, or a worker of it; of SIGKILL also why."""
        name = signal_name(number)
        return f"{name}: {self._memory.script_words()}" if number == signal.SIGKILL else name

    def ask_stop(self) -> None:
        """Sends the script SIGTERM, so that it can clean up; only once."""
        if self._stop_by is None:
            self.signalled(signal.SIGTERM)

    def signalled(self, number: int, to_group: bool = False) -> None:
        """Notes a signal that vitprof received, and passes it on unless the script has got it too.

        `to_group`: whether it was sent to all of vitprof's process group.
        """
        if number in END:
            self._end_requested = True
        if number in END and number not in FROM_THE_TERMINAL and self._stop_by is None:
            self._stop_by = time.monotonic() + STOP_GRACE_S
        if not (to_group and shares_group(self.pid)):
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


def _watching(environment: Mapping[str, str], path: str) -> dict[str, str]:
    """Returns an environment in which training is watched and reported to the socket `path`."""
    # what a watched script that starts `vitprof watch` has of its own is not for the new script
    inherited = {
        name: value for name, value in environment.items() if not name.startswith("VITPROF_WATCH_")
    }
    python_path = [str(STARTUP)]
    if before := environment.get("PYTHONPATH"):
        python_path.append(before)
    return {
        **inherited,
        "VITPROF_WATCH_SOCKET": path,
        "VITPROF_WATCH_ROOT": str(STARTUP.parents[2]),
        "PYTHONPATH": os.pathsep.join(python_path),
    }


class LoggedRunner(CommandRunner):
    """A running command without a terminal, which prints to `log`. Raises `JobError`."""

    def __init__(self, command: Sequence[str], words: str, log: Path) -> None:
        """`words`: the command as its run names it."""
        self._words = words
        with open_log(log) as out:
            super().__init__(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def messages(self) -> Iterator[Message | None]:
        yield Note("facts", {"command": self._words})
        yield from super().messages()


PRINTED = "; what it printed says why"
CHECKPOINTS = (
    ".pt",
    ".pth",
    ".ckpt",
    ".tar",
    ".bin",
    ".safetensors",
    ".pkl",
    ".npz",
    ".h5",
    ".json",
)
"""How the names of files end that training resumes from."""
NOT_IN_A_LAYER = "cross-device link|too large for defined data type"
"""Errors of the system (EXDEV, EOVERFLOW) for which overlayfs is the likely reason."""


@dataclass(frozen=True)
class TrialCommand:
    """The command of a trial, and what it changes."""

    command: Sequence[str]
    directory: str
    number: int
    steps: int
    arguments: Mapping[str, Any]
    """Arguments of the train DataLoader to change, by PyTorch's names."""
    place: str = ""
    """Where that loader is made (`vitprof.watch.trial.made_of`), with what it is made of; "" in a first
    trial, which changes nothing."""
    where: str = ""
    """File and line of it, for people."""
    nth: int | None = None
    """Which of the loaders made there; None: all of them."""
    cache_bytes: int | None = None
    """Memory for samples that are kept after they were first read; None: they are not kept."""
    packs: bool = False
    """Whether batches cross from workers packed (`vitprof.watch.packing`)."""
    as_uint8: bool = False
    """Whether floats that are whole numbers / 255 cross as uint8 (also there)."""
    across_epochs: bool = False
    """Whether the next epoch's iterator begins before an epoch ends (`vitprof.watch.early_iterators`)."""
    sharing_strategy: str | None = None
    """PyTorch's strategy by which tensors cross from workers; None: the script's own."""
    worker_threads: int | None = None
    """Threads of an operation in a worker; None: the script's own number."""
    decoder: TriedDecoder | None = None
    """Library that decodes JPEG files (`vitprof.watch.decoding`); None: the script's own."""
    stored: Mapping[str, Any] | None = None
    """The samples that its dataset is replaced by (`experiments.script_data.plans.stored_as`); None: it is not."""
    remarks: tuple[str, ...] = ()
    """Lines on the setting for the user; they become notices of the run."""
    lists_changes: bool = False
    """Whether to report the files that are written or deleted."""
    isolation: str = trial_folder.IN_PLACE
    """How the user's files stay as they are, see `trial_folder`."""
    layered: tuple[str, ...] = ()
    """The folders that a layer covers besides `directory`."""
    lasting: tuple[str, ...] = ()
    """The files that the first trial wrote and that stay: this one may resume from a checkpoint among
    them."""

    @property
    def changes(self) -> bool:
        """Returns whether the trial changes the script's loader."""
        others = (
            self.cache_bytes,
            self.stored,
            self.sharing_strategy,
            self.worker_threads,
            self.decoder,
        )
        has_others = any(other is not None for other in others)
        return bool(self.arguments) or self.may_be_unused or has_others

    @property
    def may_be_unused(self) -> bool:
        """Returns whether the setting may turn out to change nothing, as the trial goes on."""
        return self.packs or self.as_uint8 or self.across_epochs

    @property
    def variables(self) -> dict[str, str]:
        """Returns the environment variables that the trial adds for the script."""
        overrides: dict[str, Any] = {}
        if self.changes:
            overrides = {
                "place": self.place,
                "nth": self.nth,
                "arguments": self.arguments,
                "cache_bytes": self.cache_bytes,
                "packs": self.packs,
                "as_uint8": self.as_uint8,
                "across_epochs": self.across_epochs,
                "sharing_strategy": self.sharing_strategy,
                "worker_threads": self.worker_threads,
                "decoder": self._decoder(),
                "stored": self.stored,
            }
        return {"VITPROF_TRIAL": str(self.number), "VITPROF_WATCH_OVERRIDES": json.dumps(overrides)}

    def _decoder(self) -> dict[str, Any] | None:
        if self.decoder is None:
            return None
        return {name: getattr(self.decoder, name) for name in ("name", "package", "first")}


class TrialRunner(CommandRunner):
    """The running script of a trial, in a session of its own, without a terminal.

    It prints to `log`. Raises `JobError` where it cannot be started.
    """

    records_ranks = False  # a setting is compared by rank 0
    why_unseen_for = ("done",)  # a limit of time may stop one before its training begins

    def __init__(self, trial: TrialCommand, log: Path, changes: list[str] | None = None) -> None:
        """`changes`: where the trial lists changes, `close` adds to it the files that were written or
        deleted.
        """
        self._trial = trial
        self._log = log
        self._changes = changes if changes is not None else []
        self._n = 0
        """Steps so far."""
        self._wrong = ""
        """Why the setting was not applied; "" where it was, or that is not known yet."""
        self._checked_bytes = 0
        """Size of the processes' reports as they were checked last."""
        self._end_by: float | None = None
        """When to kill a script that has made its steps and has not ended, on the monotonic clock (s)."""
        looked_at = None
        if trial.lists_changes:
            covered = (os.path.realpath(trial.directory), *trial.layered)
            ways = ways_out(trial.directory, trial.command)
            looked_at = ways.looked_at(covered if trial.isolation == trial_folder.LAYER else ())
        with open_log(log) as out, contextlib.ExitStack() as unless_started:
            self._folder = folder = trial_folder.TrialFolder(
                trial.directory, trial.isolation, trial.layered, looked_at
            )
            unless_started.callback(folder.remove)
            listening = listen("trial")
            directory = os.path.dirname(listening.getsockname())
            self._reports = Path(directory) / "reports"
            self._left_behind = LeftBehind("VITPROF_WATCH_TELL", str(self._reports))
            unless_started.callback(self._left_behind.close)
            under = os.path.realpath(folder.cwd) if trial.lists_changes else ""
            reporting = {
                "VITPROF_WATCH_TELL": str(self._reports),
                "VITPROF_WATCH_OPENED_UNDER": under,
            }
            if trial.lasting:
                lasting = Path(directory) / "lasting"
                lasting.write_text(json.dumps([os.path.realpath(path) for path in trial.lasting]))
                reporting["VITPROF_WATCH_READ_AGAIN"] = str(lasting)
            super().__init__(
                folder.command(trial.command, directory),
                steps=trial.steps,
                variables=trial.variables | reporting,
                inherited=folder.environment(os.environ),
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
                self._check_reports()
                self._end_what_hangs()
                yield None
            elif not isinstance(message, Note):
                self._check_reports()
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
                    if self._trial.decoder is not None:
                        yield Note("facts", {"decoded": asdict(self._decoded())})
                    lines = [*self._notices(), *self._end_others()]
                    yield from (Note("notice", {"line": line}) for line in lines)
                yield message

    def _steps(self, steps: Columns) -> Columns:
        """Returns the steps; where samples are kept, the first epoch, which reads them, is warm-up, and so are
        steps whose files are decoded twice.
        """
        warmup = steps["warmup"]
        if self._trial.cache_bytes is not None:
            warmup = np.where(steps["epoch"] == 0, 1.0, warmup)
        if self._trial.decoder is not None:
            warmup = np.where(steps["step"] < self._trial.decoder.warmup_steps, 1.0, warmup)
        return {**steps, "warmup": warmup}

    def _check(self, watched: Mapping[str, Any]) -> None:
        """Ends the script if its loader, by the facts `watched`, is not the one that was asked for."""
        # What the processes reported may have come first: the script ends for that reason already.
        if self._trial.changes and not self._wrong:
            self._wrong = self._why_not_applied(watched)
        if self._wrong:
            self._signal(signal.SIGTERM)

    def _why_not_applied(self, watched: Mapping[str, Any]) -> str:
        trial = self._trial
        if not watched.get("made_changed"):
            where = watched.get("made_where")
            why = next((text for about, text in self._lines() if about == "problem"), "")
            if not why:
                why = f"the first trial's loader was made at {trial.where}, this one's at {where}"
                if where == trial.where:
                    why += ", in another way or for another dataset"
            return f"the setting was not applied to the loader that trains: {why}"
        differ = [name for name, value in trial.arguments.items() if _differs(watched, name, value)]
        if differ:
            return f"the script sets {', '.join(differ)} itself after it has made its loader"
        return ""

    def _decoded(self) -> DecodedFiles:
        return pixels.of_reports(text for about, text in self._lines() if about == "pixels")

    def _check_reports(self) -> None:
        """Ends the script if all is as it would be without the setting, or if the decoder that it tries gives
        other pixels, unless the user allows that."""
        decoder = self._trial.decoder
        may_be_unused = self._trial.may_be_unused
        if self._wrong or (decoder is None and not may_be_unused):
            return
        n_bytes = 0
        with contextlib.suppress(OSError):
            n_bytes = self._reports.stat().st_size
        if n_bytes == self._checked_bytes:
            return
        self._checked_bytes = n_bytes
        if may_be_unused:
            self._wrong = next((text for about, text in self._lines() if about == "unused"), "")
        if decoder is not None and not decoder.allows_other_pixels and not self._wrong:
            self._wrong = pixels.why_refused(decoder.name, self._decoded())
        if self._wrong:
            self._signal(signal.SIGTERM)

    def _done(self) -> Note:
        """Returns how a script that has ended as it should did: a decoder that decoded nothing was not tried."""
        why = ""
        if self._trial.decoder is not None:
            why = pixels.why_unused(self._trial.decoder.name, self._decoded())
        return Note("end", {"status": "failed" if why else "done", "error": why})

    def _end_what_hangs(self) -> None:
        """Kills a script that should have ended: processes of a distributed job may wait for one that
        has ended.
        """
        if self._wrong or self._n >= self._trial.steps:
            if self._end_by is None:
                self._end_by = time.monotonic() + STOP_GRACE_S
            if time.monotonic() >= self._end_by:
                self._signal(signal.SIGKILL)

    def _last(self) -> Note:
        self._check_reports()
        if self._wrong:
            return Note("end", {"status": "failed", "error": self._wrong})
        # how a script that was cut off ends does not matter
        if self._n >= self._trial.steps:
            return self._done()
        last = super()._last()
        error = last.values["error"].removesuffix(PRINTED)
        line = error_line(self._log)
        if last.values["status"] == "done":
            # where nothing was seen, there is nothing to compare
            error = self.unseen()
            resumed = self._resumed()
            if error and resumed:
                error = f"no training was seen: {resumed}"
            line = ""
        if not error:
            return self._done() if last.values["status"] == "done" else last
        if line not in error:
            error += f": {line}"
        if self._trial.isolation == trial_folder.LAYER and re.search(NOT_IN_A_LAYER, line):
            error += " (in a layer that cannot be done: begin anew with --in-place)"
        return Note("end", {"status": "failed", "error": f"{error}; its log is {self._log}"})

    def close(self) -> str:
        if self.returncode is None:  # its messages are no longer read
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_GRACE_S)
        self._end_others()
        if self._trial.lists_changes:
            self._changes += self._folder.changes(
                [text for about, text in self._lines() if about == "opened"]
            )
        why = super().close()
        self._left_behind.close()
        self._folder.remove()
        return why

    def _end_others(self) -> list[str]:
        """Kills the processes that outlive the script; returns a line on each that still runs."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        return [
            f"the trial started {process}, which could not be ended: end it yourself"
            for process in self._left_behind.end()
        ]

    def _notices(self) -> list[str]:
        lines = list(dict.fromkeys(text for about, text in self._lines() if about == "notice"))
        is_watched = self._listener.places.has_first and not self._wrong
        if is_watched and self._n < self._trial.steps and self.returncode == 0:
            ended = f"the script ended by itself after {self._n} of {self._trial.steps} steps"
            read = self._read_again()
            if read:
                ended += f"; it read {read}, which an earlier trial wrote, and may go on from there"
            lines.append(ended)
        return lines

    def _read_again(self) -> str:
        """Returns the file of an earlier trial that this one has read; of several a checkpoint first."""
        read = [text for about, text in self._lines() if about == "read"]
        return min(read, key=lambda path: not _is_checkpoint(path), default="")

    def _resumed(self) -> str:
        """Returns from which file of an earlier trial the script seems to resume, and what to do; ""
        where none stays.
        """
        read = self._read_again()
        checkpoints = [
            path for path in self._trial.lasting if _is_checkpoint(path) and os.path.isfile(path)
        ]
        if read:
            what = (
                f"the script read {read}, which an earlier trial wrote, and seems to resume from it"
            )
        elif checkpoints:
            what = f"the script may resume from {checkpoints[0]}, which an earlier trial wrote"
        else:
            return ""
        to_do = "move it away, and have the script begin anew"
        if self._trial.isolation:
            below = f"below {self._trial.directory}, where nothing stays of a trial"
            to_do = f"move it away, and have the script write it {below}"
        return f"{what}: {to_do}"

    def _lines(self) -> list[tuple[str, str]]:
        """Returns what the script's processes reported: what a line is about, and its text."""
        reported = []
        with contextlib.suppress(OSError):
            for line in self._reports.read_text(errors="replace").splitlines():
                # a process that was killed may have left a part of a line
                with contextlib.suppress(ValueError):
                    about, text = json.loads(line)
                    reported.append((str(about), str(text)))
        return reported

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _is_checkpoint(path: str) -> bool:
    return path.endswith(CHECKPOINTS)


def _differs(watched: Mapping[str, Any], name: str, value: Any) -> bool:
    """Returns whether the loader that trains is known to have another value of an argument."""
    if name == "multiprocessing_context":
        name = "start_method"
    # None is PyTorch's own choice, which the loader then shows as a number
    if name == "prefetch_factor" and value is None:
        return False
    # a fact only where it is off
    if name == "in_order":
        return bool(watched.get(name, True)) is not bool(value)
    return name in watched and watched[name] != value
