"""What is recorded of a script that watches itself: its messages over a socket, without anything that trains."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import IO, Any

import numpy as np
import pytest

from tests.clock import Clock
from tests.engine_fixtures import wait_until
from tests.jobs.reported import DONE, ReportingJob
from tests.jobs.reported import step_columns as steps
from tests.watch.core.written import MAIN, TRAIN
from tests.watch.core.written import Script as Written
from vitprof.config import RunConfig
from vitprof.errors import VitprofError
from vitprof.jobs.collector import (
    GONE,
    Listener,
    ScriptRunner,
    connections,
    listen,
    record,
    stream_of,
)
from vitprof.jobs.supervisor import JobRecorder
from vitprof.measure.wire import Message, Note, write_message
from vitprof.recording import codec
from vitprof.store import RunStore
from vitprof.watch.core.log import row_of
from vitprof.watch.events import COLUMNS

DESCRIBED = Note(
    "environment",
    {"device": "cpu", "watched": {"name": "mine", "dataset": "Samples", "batch_size": 4}},
)
LIMIT_S = 60.0


class Script:
    """The script's end of the socket, and the program beside it in a thread."""

    def __init__(self, pid: int) -> None:
        self._ours, theirs = socket.socketpair()
        self._stream: IO[bytes] = self._ours.makefile("wb")
        thread = ThreadPoolExecutor(1)
        self._recording = thread.submit(record, ScriptRunner(theirs, pid))
        thread.shutdown(wait=False)

    def says(self, *messages: Message) -> None:
        for message in messages:
            write_message(self._stream, message)
        self._stream.flush()

    def hears(self) -> dict[str, object]:
        self._ours.settimeout(LIMIT_S)
        return dict(json.loads(self._ours.recv(4096)))

    def hangs_up(self) -> None:
        self._stream.close()
        self._ours.close()

    def waits(self) -> str:
        """For the program to end; the error that it ends with."""
        error = self._recording.exception(LIMIT_S)
        assert error is None or isinstance(error, VitprofError)
        return str(error or "")


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script(os.getpid())
    yield script
    script.hangs_up()
    script.waits()


def stored() -> Any:
    with closing(RunStore()) as store:
        (run,) = store.runs()
        return run


def until(status: str) -> Any:
    wait_until(lambda: stored().status == status, f"status {status}")
    return stored()


def test_a_run_that_is_over_may_go_on(script: Script) -> None:
    script.says(steps(0, 3), DESCRIBED)  # in whatever order they come
    assert script.hears() == {"run": 1}
    script.says(DONE)
    run = until("done")
    assert (run.name, run.config.dataset, run.config.batch_size) == ("mine", "Samples", 4)
    assert run.summary.n_steps == 3
    began = run.t_origin_s
    script.says(DESCRIBED)
    until("running")
    script.says(steps(3, 2), Note("end", {"status": "stopped", "error": ""}))
    run = until("stopped")
    assert (run.summary.n_steps, run.t_origin_s) == (5, began)


def test_a_script_that_hangs_up_without_a_last_message(script: Script) -> None:
    script.says(DESCRIBED, steps(0, 3))
    script.hears()
    script.hangs_up()
    script.waits()
    run = stored()
    assert (run.status, run.error) == ("failed", GONE)
    assert run.summary.n_steps == 3
    assert run.facts["partly_watched"], "its process goes on"


def test_the_end_of_its_process_is_seen_though_another_one_has_the_socket() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    script = Script(process.pid)
    script.says(DESCRIBED)
    script.hears()
    process.communicate()
    script.waits()
    assert (stored().error, "partly_watched" in stored().facts) == (GONE, False)
    script.hangs_up()


def test_a_script_that_never_trains_or_has_no_store(
    monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    silent = Script(os.getpid())
    silent.hangs_up()
    silent.waits()
    with closing(RunStore()) as store:
        assert not store.runs()
    monkeypatch.setenv("VITPROF_HOME", "/dev/null")
    script.says(DESCRIBED)
    assert "cannot write to /dev/null" in str(script.hears()["error"])


def test_what_writes_steps_is_imported_before_training(
    monkeypatch: pytest.MonkeyPatch, store: RunStore
) -> None:
    """250 ms of CPU later on."""
    imported: list[str] = []
    arrow = codec.arrow
    monkeypatch.setattr(codec, "arrow", lambda: imported.append("pyarrow") or arrow())

    class Job(ReportingJob):
        def messages(self) -> Any:
            imported.append("its first message")
            return super().messages()

    job = Job(Clock(), 0.0, lambda now: None)
    JobRecorder(store, store.create_run(RunConfig()), threading.Event(), start=lambda: job).run()
    assert imported[:2] == ["pyarrow", "its first message"]


def test_who_connected_before_the_script_ended_is_read_though_nobody_had_looked() -> None:
    """Of several ranks that end at once, the last one may have connected a moment before."""
    ending = threading.Event()
    with closing(listen("test")) as listening:
        path = listening.getsockname()
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            first.connect(path)
            second.connect(path)
            ending.set()
            found = list(connections(listening, ending))
            for connection in found:
                connection.close()
    shutil.rmtree(os.path.dirname(path))
    assert len(found) == 2


def test_what_a_process_sent_is_read_though_it_ended_with_unread_answers() -> None:
    """The socket is then reset, and what it has sent is still there."""
    theirs, ours = socket.socketpair()
    with ours, stream_of(ours) as stream:
        theirs.sendall(b"the last steps")
        ours.sendall(b"an answer")
        theirs.close()
        assert stream.read() == b"the last steps"


class WatchedProcess:
    """A process that sends its events, and a program that reads it."""

    def __init__(self, *, recorded: bool) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(LIMIT_S)
        self._stream: IO[bytes] = self._ours.makefile("wb")
        self.listener = Listener([theirs], "watched")
        process = {"pid": 17, "world_size": 2, "rank": 1, "recorded": recorded}
        self.sends(Note("process", process))

    def sends(self, *messages: Message) -> None:
        for message in messages:
            write_message(self._stream, message)
        self._stream.flush()

    def trains(self, n: int) -> None:
        script = Written()
        script.train(n)
        for each in script.log.descriptions.values():
            facts = {"number": each.number, "kind": each.kind, "facts": each.facts}
            self.sends(Note("described", facts))
        rows = np.array([row_of(event) for event in script.log.events], dtype=float)
        self.sends(dict(zip(COLUMNS, rows.T, strict=True)))

    def hears(self) -> dict[str, object]:
        return dict(json.loads(self._ours.recv(4096)))

    def ends(self) -> list[Message]:
        """Returns all that a run was told."""
        self._stream.close()
        self._ours.close()
        self.listener.join(LIMIT_S)
        return list(iter(self.listener.inbox.get, None))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_process_that_is_not_recorded_is_answered_and_no_run_is_told_of_it(
    recorded: bool,
) -> None:
    """Another rank counts its steps, to end after the same one."""
    process = WatchedProcess(recorded=recorded)
    process.trains(6)
    process.sends(Note("steps", {"thread": MAIN}))
    assert process.hears() == {"answer": "steps", "ended": 5, "loader": TRAIN}
    place, *told = process.ends()
    assert place == Note("rank", {"rank": 1, "pid": 17}), "to be seen where it is stopped"
    n_steps = sum(len(each["step"]) for each in told if not isinstance(each, Note))
    assert n_steps == (6 if recorded else 0)
    assert bool(told) is recorded


def test_the_gpu_of_another_rank_is_told_to_the_run() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    listener = Listener([theirs for _, theirs in pairs], "ranks")
    streams = [ours.makefile("wb") for ours, _ in pairs]
    for rank, stream in enumerate(streams):
        environment = {"device": f"cuda:{rank}", "rank": rank, "world_size": 2}
        write_message(stream, Note("environment", environment | {"gpu_uuid": f"GPU-{rank}"}))
        stream.flush()
    told: list[Message | None] = []
    while not any(isinstance(each, Note) and each.kind == "gpu" for each in told):
        told.append(listener.inbox.get(timeout=LIMIT_S))
    for stream, (ours, _) in zip(streams, pairs, strict=True):
        stream.close()
        ours.close()
    listener.join(LIMIT_S)
    assert told[-1] == Note("gpu", {"uuid": "GPU-1"})
