"""What tests of watching share: a script that trains in a process of its own, watched, and what was told of it."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests import ROOT
from tests.shares import check_steps
from vitprof.analysis.arrays import Series
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.own_script import own_config
from vitprof.jobs.collector import stream_of
from vitprof.measure.wire import Message, Note, read_messages
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.recording.verdict import Verdict
from vitprof.store.chunks import joined
from vitprof.watch.core.messages import of_process

LIMIT_S = 60.0
RUN = 7
"""The number that the run of a script is said to have."""


def examples() -> list[str]:
    """Returns the pieces of Python in what is written for people who watch a script of their own."""
    text = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@dataclass
class Told:
    """What came of a script."""

    status: int = 0
    returned: str = ""
    complaint: str = ""
    """Standard error."""
    spent: dict[str, list[float]] = field(default_factory=dict)
    """`scripts.SPENT`."""
    notes: list[Note] = field(default_factory=list)
    columns: list[Series] = field(default_factory=list)

    @property
    def steps(self) -> Series:
        steps = joined("steps", self.columns, STEP_COLUMNS)
        check_steps(steps)
        return steps

    def note(self, kind: str) -> list[dict[str, Any]]:
        return [note.values for note in self.notes if note.kind == kind]

    def facts(self) -> dict[str, Any]:
        """Returns what was said last of each."""
        return {name: value for values in self.note("facts") for name, value in values.items()}

    def verdict(self) -> Verdict:
        telemetry = dict.fromkeys(TELEMETRY_COLUMNS, np.zeros(0))
        return judge(
            own_config("script", workers=0),
            self.steps,
            [],
            telemetry,
            self.note("environment")[0] | self.facts(),
        )


class Host:
    """Forks that run functions of a module: a tenth of the time of a process that loads PyTorch."""

    limit_s = LIMIT_S
    """How long one may take."""

    def __init__(
        self,
        module: str = "tests.watch.scripts",
        env: Mapping[str, str] | None = None,
        *others: str,
    ) -> None:
        """`module` is loaded before any fork, and so are `others`, whose functions `running` runs."""
        self._module = module
        self._process: Any = subprocess.Popen(
            [sys.executable, "-m", "tests.watch.host", module, *others],
            cwd=ROOT,
            # The threads of PyTorch would wait for each other, busily: the models are tiny.
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def running(self, module: str) -> Host:
        """The same process, for functions of another module."""
        other = copy.copy(self)
        other._module = module
        return other

    def ok(self, function: str = "train", **more: Any) -> Told:
        """Runs a script that ends well, and of which nobody complains."""
        told = self.run(function, **more)
        # Assertions of this module are not rewritten: they say themselves what they have seen.
        ended = (told.status, told.complaint)
        assert ended == (0, ""), (
            f"exit status {told.status}, and on standard error: {told.complaint}"
        )
        return told

    def run(
        self,
        function: str = "train",
        *,
        watched: bool = True,
        listen: bool = True,
        hang_up: bool = False,
        failing: str = "",
        env: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Told:
        """Runs the script; SIGALRM ends it after `limit_s`. `failing`: the method that raises an error;
        `hang_up`: who listens goes."""
        told = Told()
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
            path = str(Path(folder) / "socket")
            reader = threading.Thread(target=_read, args=(listening, told, hang_up))
            if listen:
                listening.bind(path)
                listening.listen()
                reader.start()
            job = {
                "module": self._module,
                "function": function,
                "arguments": arguments,
                "watched": watched,
            }
            job |= {
                "failing": failing,
                "folder": folder,
                "limit_s": self.limit_s,
            }
            job["env"] = {"VITPROF_WATCH_SOCKET": path, **(env or {})}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            told.status = int(self._process.stdout.readline())
            if listen:
                listening.shutdown(socket.SHUT_RDWR)
                reader.join(LIMIT_S)
            returned = Path(folder) / "returned"
            told.returned = returned.read_text() if returned.exists() else ""
            spent = Path(folder) / "spent"
            told.spent = json.loads(spent.read_text()) if spent.exists() else {}
            told.complaint = (Path(folder) / "complaint").read_text()
        return told

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process.stdout.close()


def _tell(connection: socket.socket, values: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it has ended
        connection.sendall(json.dumps(values).encode() + b"\n")


def _understood(messages: Iterator[Message]) -> Iterator[Message]:
    """Yields what a run is told; of a process that is not recorded, only answers."""
    for message in messages:
        if isinstance(message, Note) and message.kind == "process":
            for told in of_process(message.values, messages):
                is_answer = isinstance(told, Note) and told.kind == "answer"
                if is_answer or message.values["recorded"]:
                    yield told
        else:
            yield message


def _read(listening: socket.socket, told: Told, hang_up: bool) -> None:
    try:
        connection, _ = listening.accept()
    except OSError:  # shut down: nobody came
        return
    if hang_up:
        connection.close()
        return
    has_begun = False
    with connection, stream_of(connection) as stream:
        for message in _understood(read_messages(stream)):
            if isinstance(message, Note) and message.kind == "answer":
                _tell(connection, message.values)
                continue
            if isinstance(message, Note) and message.kind == "environment" and not has_begun:
                has_begun = True
                _tell(connection, {"run": RUN})  # once, as the collector does
            if isinstance(message, Note):
                told.notes.append(message)
            else:
                told.columns.append(message)
