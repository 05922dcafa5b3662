"""The job's own process: its messages, its end, and what becomes of it when its parent goes."""

import json
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from tests import ROOT
from tests.engine_fixtures import CHEAP, gone, wait_until
from vitprof.config import RunConfig
from vitprof.engine import train
from vitprof.errors import DataError, JobStopped
from vitprof.jobs.child import run_job
from vitprof.measure.wire import EventBuffer, Message, Note, read_messages
from vitprof.store.chunks import joined

QUICK = CHEAP | {"strategy": "memory", "steps": 6, "evaluate": False}
MISSING = "is not installed: python -m pip install -r requirements.txt"


def with_train(body: str, *, orphan_grace_s: float = 60.0) -> list[str]:
    """A child whose `train(config, events, stop)` is `body`, so that it needs no torch.

    An orphan has `orphan_grace_s` to end: a busy machine cannot use up its default.
    """
    script = f"""
import sys, types, time, os, threading
import numpy as np
module = types.ModuleType("vitprof.engine.train")
def train(config, events, stop):
{textwrap.indent(textwrap.dedent(body), "    ")}
module.train = train
sys.modules["vitprof.engine.train"] = module
from vitprof.jobs import child
child.ORPHAN_GRACE_S = {orphan_grace_s}
child.main()
"""
    return [sys.executable, "-c", script]


class Child:
    """A child process, its pipe and its log."""

    def __init__(self, command: list[str], log: Path, config: dict[str, Any]) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process: Any = subprocess.Popen(
                command, stdin=-1, stdout=-1, stderr=file, cwd=ROOT
            )
        self.stdout, self.stdin = self.process.stdout, self.process.stdin
        self.stdin.write(json.dumps(RunConfig(**config).to_dict()).encode() + b"\n")
        self.stdin.flush()
        self.messages: Iterator[Message] = read_messages(self.stdout)
        self.steps: list[Any] = []
        self.notes: list[Note] = []

    def read_until(self, kind: str, **values: Any) -> Note:
        """Read on to a note of this kind with these values."""
        for message in self.messages:
            if not isinstance(message, Note):
                self.steps.append(message)
                if kind == "steps":
                    return Note("steps", {})
                continue
            self.notes.append(message)
            if message.kind == kind and values.items() <= message.values.items():
                return message
        pytest.fail(f"the child ended without {kind} {values}: {self.log.read_text()}")

    def numbers(self) -> list[float]:
        return joined("steps", self.steps, ["step"])["step"].tolist()

    def close(self) -> None:
        self.stdin.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.stdout.close()


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    def begin(command: list[str], config: dict[str, Any]) -> Child:
        child = Child(command, tmp_path / "log", config)
        request.addfinalizer(child.close)
        return child

    return begin


@pytest.mark.measured
@pytest.mark.usefixtures("full_home")
def test_the_end_of_standard_input_stops_a_job_in_which_everybody_prints(start: Any) -> None:
    """Python, C code and worker processes write to standard output; the channel carries messages only."""
    script = """
import os
from vitprof.engine.loaders.dataloader import TimedBatches
open, make = TimedBatches.__init__, TimedBatches.__getitems__
def loudly_open(self, *args, **kwargs):
    os.write(1, b"C prints\\n")
    print("Python prints", flush=True)
    open(self, *args, **kwargs)
def loudly_make(self, ticket):
    print("a worker prints", flush=True)
    return make(self, ticket)
TimedBatches.__init__, TimedBatches.__getitems__ = loudly_open, loudly_make
from vitprof.jobs.child import main
main()
"""
    endless = {"strategy": "workers", "storage": "memory", "steps": 100_000}
    child = start([sys.executable, "-c", script], QUICK | endless)
    child.read_until("steps")
    workers = psutil.Process(child.process.pid).children()
    assert len(workers) == 2
    child.stdin.close()
    assert child.read_until("end").values == {"status": "stopped", "error": ""}
    assert list(child.messages) == []
    assert child.process.wait(60) == 0
    assert child.numbers() == list(range(len(child.numbers())))
    assert {"environment", "stage", "phase", "facts", "end"} == {note.kind for note in child.notes}
    assert gone(workers)
    assert all(
        line in child.log.read_text() for line in ("Python prints", "C prints", "a worker prints")
    )


def test_one_whose_parent_no_longer_reads_or_is_gone_ends_itself_though_it_hangs(
    start: Any,
) -> None:
    steps = "while not stop(): events.steps({'step': np.zeros(1)}); time.sleep(0.001)\n"
    hangs = "threading.Event().wait()"
    for then, grace_s, code in (("return False", 60.0, 0), (hangs, 0.2, 1)):
        child = start(with_train(steps + then, orphan_grace_s=grace_s), {})
        child.read_until("steps")
        child.stdout.close()
        child.stdin.close()
        assert child.process.wait(60) == code


def test_a_full_pipe_does_not_hold_up_the_job(start: Any, tmp_path: Path) -> None:
    """The sender's thread waits, not the training loop; everything arrives in the end."""
    done = tmp_path / "done"
    body = (
        "for i in range(20_000): events.steps({'step': np.array([float(i)])})\n"
        + f"open({str(done)!r}, 'w')"
    )
    child = start(with_train(body), {})
    wait_until(done.exists, "the end of training while nobody reads")
    child.read_until("end")
    assert child.numbers() == list(range(20_000))


@pytest.mark.parametrize(
    ("outcome", "status", "message", "traced"),
    [
        (True, "done", "", False),
        (False, "stopped", "", False),
        (JobStopped("stopped while it was being made"), "stopped", "", False),
        (DataError("x.idx is damaged"), "failed", "x.idx is damaged", False),
        (ValueError("first line\nlast"), "failed", "ValueError: first line", True),
        (SystemExit(3), "failed", "SystemExit: 3", True),
        (
            MemoryError(),
            "failed",
            r"out of memory \(MemoryError\); the job held \d.*; .*try a smaller .*",
            True,
        ),
        (ModuleNotFoundError("No cv2", name="cv2"), "failed", f"the package cv2 {MISSING}", True),
    ],
)
def test_every_end_is_reported(
    outcome: Any,
    status: str,
    message: str,
    traced: bool,
    monkeypatch: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(train, "train", Mock(side_effect=[outcome]))
    buffer = EventBuffer()
    run_job(RunConfig(), buffer, threading.Event())
    (end,) = buffer.drain()
    assert isinstance(end, Note)
    assert end.values["status"] == status
    assert re.fullmatch(message, end.values["error"])
    assert ("Traceback" in capsys.readouterr().err) == traced
