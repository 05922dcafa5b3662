"""The two ways to run a job, with children that are made for the occasion."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.engine_fixtures import gone, vitprof_threads, wait_until
from vitprof.config import RunConfig
from vitprof.engine import train
from vitprof.errors import JobError, VitprofError
from vitprof.jobs.launcher import Launcher
from vitprof.jobs.runners import ProcessRunner, ThreadRunner, start_runner
from vitprof.measure.wire import Message, Note

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups and signals of POSIX")
DONE = [Note("end", {"status": "done", "error": ""})]
CONFIG = RunConfig(isolation="thread")


def heard(messages: Iterator[Message | None]) -> list[Message]:
    return [message for message in messages if message is not None]


class TestThread:
    @pytest.fixture(autouse=True)
    def _no_thread_is_left(self) -> Iterator[None]:
        yield
        assert "vitprof-job" not in vitprof_threads()

    def run(self, monkeypatch: pytest.MonkeyPatch, job: Any) -> ThreadRunner:
        monkeypatch.setattr(train, "train", job)
        return ThreadRunner(CONFIG)

    def test_messages_until_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def job(config: RunConfig, events: Any, stop: Any) -> bool:
            assert config == CONFIG
            for i in range(1000):
                events.steps({"step": np.array([float(i)])})
            return True

        runner = self.run(monkeypatch, job)
        *steps, end = heard(runner.messages())
        runner.close()
        assert [step["step"].tolist() for step in steps] == [[i] for i in range(1000)]
        assert [end] == DONE
        assert runner.pid == os.getpid()

    def test_none_where_there_is_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        silent = threading.Event()
        runner = self.run(monkeypatch, lambda *args: silent.wait())
        assert list(itertools.islice(runner.messages(), 2)) == [None, None]
        silent.set()
        assert heard(runner.messages()) == DONE
        runner.close()

    def test_asked_to_stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def job(config: RunConfig, events: Any, stop: Any) -> bool:
            wait_until(stop, "a wish to stop")
            return False

        runner = self.run(monkeypatch, job)
        runner.ask_stop()
        assert heard(runner.messages()) == [Note("end", {"status": "stopped", "error": ""})]
        runner.close()

    def test_killed_in_a_loop_of_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started, cleaned = threading.Event(), threading.Event()

        def job(config: RunConfig, events: Any, stop: Any) -> bool:
            try:
                started.set()
                for i in itertools.count():
                    _ = i  # deaf to any wish to stop
            finally:
                cleaned.set()
            return True

        runner = self.run(monkeypatch, job)
        started.wait()
        runner.kill()
        assert heard(runner.messages()) == [Note("end", {"status": "stopped", "error": ""})]
        assert cleaned.is_set()
        runner.close()
        runner.kill()  # of a thread that has ended

    def test_killed_when_it_had_just_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kill comes in after the job's own handlers; the messages end all the same, and nobody is told."""
        reported, killed = threading.Event(), threading.Event()

        def late(config: RunConfig, buffer: Any, stop: Any) -> None:
            buffer.end("done")
            reported.set()
            while not killed.is_set():
                pass
            for _ in range(10_000):  # where the exception arrives
                pass

        monkeypatch.setattr("vitprof.jobs.child.run_job", late)
        runner = ThreadRunner(CONFIG)
        reported.wait()
        runner.kill()
        killed.set()
        assert heard(runner.messages()) == DONE
        runner.close()

    def test_a_thread_that_ends_without_a_word(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vitprof.jobs.child.run_job", lambda *args: None)
        runner = ThreadRunner(CONFIG)
        assert heard(runner.messages()) == []
        assert "without a last message" in runner.close()


class TestProcess:
    """The child is a shell script here: quick, and able to do what a child never should."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        def begin(script: str) -> ProcessRunner:
            path = tmp_path / "python"
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
            monkeypatch.setattr(sys, "executable", str(path))
            return ProcessRunner(RunConfig(), tmp_path / "log")

        yield begin
        assert not vitprof_threads()

    def test_the_config_comes_in_and_messages_go_out(self, run: Any, tmp_path: Path) -> None:
        frame = r"N\014\000\000\000" + r"[\"facts\",{}]"  # 12 bytes
        runner = run(f'read config; printf "{frame}"; echo "$config" >&2; cat; exit 0')
        first = next(message for message in runner.messages() if message is not None)
        assert first == Note("facts", {})
        runner.ask_stop()
        assert heard(runner.messages()) == []
        assert "exit status 0" in runner.close()
        assert '"strategy": "per-sample"' in (tmp_path / "log").read_text()

    def test_what_is_said_of_an_end_without_a_last_message(self, run: Any, tmp_path: Path) -> None:
        runner = run("echo first >&2; echo 'the last line' >&2; exit 3")
        assert heard(runner.messages()) == []
        assert runner.close() == (
            f"the job's process ended with exit status 3: the last line; its log is {tmp_path / 'log'}"
        )

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "why"),
        [("SIGKILL", r": (not by the kernel for memory|the system may).*; the job held .*"), ("SIGSEGV", "")],
    )
    def test_what_is_said_of_a_signal(self, run: Any, tmp_path: Path, name: str, why: str) -> None:
        runner = run("read config; exec sleep 1000")
        assert next(runner.messages()) is None
        os.kill(runner.pid, getattr(signal, name))
        assert heard(runner.messages()) == []
        said = f"the job's process was ended by {name}{why}; its log is {re.escape(str(tmp_path / 'log'))}"
        assert re.fullmatch(said, runner.close())

    def test_a_link_in_place_of_its_log_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "log").symlink_to(tmp_path / "somebody's")
        with pytest.raises(VitprofError, match="log cannot be written: it is a link"):
            ProcessRunner(CONFIG, tmp_path / "log", start=lambda log: pytest.fail("it was started"))
        assert not (tmp_path / "somebody's").exists()

    def test_what_is_no_message_ends_it(self, run: Any) -> None:
        """Else the pipe would fill up and the job wait for ever."""
        runner = run("while :; do echo 'this is no frame'; done")
        assert heard(runner.messages()) == []
        why = runner.close()
        assert why.startswith("the job's process was ended because it sent something that is not a message")
        assert "\n" not in why

    def test_kill_ends_its_workers_too(self, run: Any) -> None:
        runner = run("sleep 1000 & sleep 1000 & read config; wait")
        workers = wait_until(lambda: len(c := psutil.Process(runner.pid).children()) == 2 and c, "its workers")
        runner.kill()
        assert heard(runner.messages()) == []
        runner.close()
        assert gone(workers)
        runner.kill()  # of nobody

    def test_a_worker_that_outlives_the_child_does_not_hold_the_run_open(self, run: Any) -> None:
        """It has inherited the pipe; only its end is the pipe's end."""
        runner = run("sleep 1000 & exit 1")
        assert heard(runner.messages()) == []
        assert "exit status 1" in runner.close()

    def test_one_that_ignores_everything(self, run: Any) -> None:
        runner = run("trap '' TERM INT HUP; while :; do sleep 1000; done")
        runner.ask_stop()
        assert next(runner.messages()) is None
        runner.kill()
        assert heard(runner.messages()) == []
        assert "SIGKILL" in runner.close()


def test_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(JobError, match=r"^the job's process could not be started: .*No such file") as caught:
        start_runner(RunConfig(), tmp_path / "log", Launcher(), threading.Event())
    assert "\n" not in str(caught.value)
