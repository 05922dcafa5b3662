"""A command as a job: how it is started, stopped and ended, without anything that trains."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

from vitprof.config.own_script import own_config
from vitprof.errors import JobError
from vitprof.jobs import command
from vitprof.jobs.command import NOT_WATCHED, CommandRunner
from vitprof.jobs.supervisor import JobRecorder
from vitprof.measure.wire import Note
from vitprof.store import RunStore, StoredRun

SLEEPS = "import sys, time; print('on', flush=True); time.sleep(60)"


def recorded(store: RunStore, source: str) -> StoredRun:
    """A run of a Python program, recorded to its end."""
    run_id = store.create_run(own_config("a script"))
    recorder = JobRecorder(
        store, run_id, threading.Event(), start=lambda: CommandRunner([sys.executable, "-c", source])
    )
    recorder.run()
    return store.run(run_id)


@pytest.mark.slow
def test_what_was_not_watched_says_so(store: RunStore) -> None:
    run = recorded(store, "pass")
    assert (run.status, run.error) == ("failed", NOT_WATCHED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise SystemExit(7)", "the script ended with exit status 7"),
        ("import os; os.kill(os.getpid(), 9)", "the script ended with SIGKILL"),
    ],
)
def test_a_script_that_fails(store: RunStore, source: str, error: str) -> None:
    run = recorded(store, source)
    assert (run.status, run.error) == ("failed", error)


def test_ctrl_c_is_a_stop(store: RunStore) -> None:
    source = f"import os, signal; signal.signal({int(signal.SIGINT)}, signal.SIG_DFL); os.kill(os.getpid(), 2)"
    assert recorded(store, source).status == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("ignores", [False, True])
def test_asked_to_end_and_ended_if_it_does_not(
    ignores: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "STOP_GRACE_S", 0.2)
    ignoring = f"import signal; signal.signal({int(signal.SIGTERM)}, signal.SIG_IGN); " if ignores else ""
    runner = CommandRunner([sys.executable, "-c", ignoring + SLEEPS])
    runner.kill()
    assert runner.returncode is None, "nobody asked: the script goes on, whatever happens to vitprof"
    out, last = "", None
    for message in runner.messages():
        out += capfd.readouterr().out
        if isinstance(message, Note):
            last = message
        elif out:
            if runner._stop_by is None:
                runner.ask_stop()
            runner.kill()
    runner.close()
    assert runner.returncode == -(signal.SIGKILL if ignores else signal.SIGTERM)
    assert last == Note("end", {"status": "stopped", "error": ""})


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["raise SystemExit(0)", "raise SystemExit(1)"])
def test_ctrl_c_is_a_stop_however_the_script_ends(ends: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The terminal has told it; it is not told twice."""
    source = f"""
import signal, sys, time
interrupted, ended = [], []
signal.signal({int(signal.SIGINT)}, lambda *_: interrupted.append(1))
signal.signal({int(signal.SIGTERM)}, lambda *_: ended.append(1))
print("on", flush=True)
while not ended:  # not signal.pause: a signal that arrives just before it would not end it
    time.sleep(0.01)
print(len(interrupted), flush=True)
{ends}
"""
    runner = CommandRunner([sys.executable, "-c", source])
    said, last = "", None
    for message in runner.messages():
        said += capfd.readouterr().out
        if said and not runner._asked:
            runner.signalled(signal.SIGINT)
            assert not runner.stopping
            runner._process.terminate()  # something else ends it
        last = message
    runner.close()
    assert (said + capfd.readouterr().out).split() == ["on", "0"]
    assert last == Note("end", {"status": "stopped", "error": ""})


def test_what_is_not_there() -> None:
    with pytest.raises(JobError, match="cannot start no-such-command: No such file or directory"):
        CommandRunner(["no-such-command"])


def test_another_sitecustomize_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = "import sys; print(sorted(m for m in sys.modules if m.startswith('vitprof')))"
    runner = CommandRunner([sys.executable, "-c", source])
    for _ in runner.messages():
        pass
    runner.close()
    assert capfd.readouterr().out.splitlines() == [
        "the other one",
        "['vitprof', 'vitprof.watch', 'vitprof.watch.install', 'vitprof.watch.patching']",
    ]
