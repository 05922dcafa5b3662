"""What tests of watching share: a script that trains in a process of its own, watched, and what was told of it."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests import ROOT
from vitprof.analysis.arrays import Series
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.own_script import own_config
from vitprof.measure.wire import Note, read_messages
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.recording.verdict import Verdict
from vitprof.store.chunks import joined

LIMIT_S = 60.0


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
        return joined("steps", self.columns, STEP_COLUMNS)

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
        assert (told.status, told.complaint) == (0, "")
        return told

    def run(
        self,
        function: str = "train",
        *,
        watched: bool = True,
        listen: bool = True,
        hang_up: bool = False,
        failing: str = "",
        never_plain: bool = False,
        env: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Told:
        """Runs the script; SIGALRM ends it after `limit_s`. `failing`: the method of `Loop` that raises an error;
        `hang_up`: who listens goes; `never_plain`: no loop is taken for plain."""
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
                "never_plain": never_plain,
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


def _read(listening: socket.socket, told: Told, hang_up: bool) -> None:
    try:
        connection, _ = listening.accept()
    except OSError:  # shut down: nobody came
        return
    if hang_up:
        connection.close()
        return
    with connection, connection.makefile("rb") as stream:
        for message in read_messages(stream):
            if isinstance(message, Note):
                told.notes.append(message)
            else:
                told.columns.append(message)
