"""A trial of a user's own script as a job: what it is given, what is checked of it, how it ends."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from vitprof.config.own_script import own_config
from vitprof.errors import JobError
from vitprof.jobs import trial as trials
from vitprof.jobs.command import Trial, TrialRunner
from vitprof.jobs.supervisor import JobRecorder
from vitprof.store import RunStore, StoredRun

Run = Callable[..., StoredRun]


def a_trial(folder: Path, *words: str, **more: object) -> Trial:
    command = (sys.executable, "-m", "tests.jobs.pretend", *words)
    known = {"command": command, "directory": str(folder), "number": 3, "steps": 40, "arguments": {}}
    return Trial(**(known | more))  # type: ignore[arg-type]


@pytest.fixture
def run(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs and records a trial of the pretended script."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def recorded(*words: str, opened: list[str] | None = None, **more: object) -> StoredRun:
        run_id = store.create_run(own_config("a trial", steps=40))
        made = a_trial(tmp_path, *words, **more)
        start = lambda: TrialRunner(made, tmp_path / "log", opened)  # noqa: E731
        JobRecorder(store, run_id, threading.Event(), start=start).run()
        return store.run(run_id)

    return recorded


def test_what_is_measured_and_what_it_was_given(run: Run, store: RunStore, tmp_path: Path) -> None:
    opened: list[str] = []
    ended = run("writes", opened=opened, lists_opened=True)
    assert (ended.status, ended.error, ended.config.batch_size, ended.config.workers) == ("done", "", 8, 0)
    assert store.n_steps(ended.id) == 40
    assert (tmp_path / "model.pt").read_text() == "of trial 3"
    assert opened == ["model.pt"]


def test_the_setting_is_in_the_runs_config(run: Run) -> None:
    given = {"num_workers": 2, "prefetch_factor": 4, "pin_memory": True}
    ended = run(arguments=given, place="there", remarks=("read this",))
    assert ended.notices == ("read this",)
    config = ended.config
    assert (ended.status, config.workers, config.prefetch_factor, config.pin_memory) == ("done", 2, 4, True)


def test_a_setting_that_was_not_applied_fails(run: Run) -> None:
    ended = run("elsewhere", arguments={"num_workers": 2}, place="there", where="train.py:5")
    assert ended.status == "failed"
    assert ended.error == (
        "the setting was not applied to the loader that trains: the first trial's loader was made at train.py:5, "
        "this one's at train.py:7"
    )


def test_a_script_that_fails_says_why_and_where_it_is_told(run: Run, tmp_path: Path) -> None:
    ended = run("fails", arguments={"num_workers": 2}, place="there")
    why = f"the script ended with exit status 1: ValueError: not with workers; its log is {tmp_path / 'log'}"
    assert (ended.status, ended.error) == ("failed", why)


def test_a_script_that_ends_sooner_says_so(run: Run) -> None:
    ended = run("short")
    assert (ended.status, ended.notices) == ("done", ("the script ended by itself after 20 of 40 steps",))


def test_the_epoch_that_fills_the_cache_is_warm_up(run: Run, store: RunStore) -> None:
    ended = run(cache_bytes=1000, place="there")
    assert store.steps(ended.id)["warmup"].tolist() == [1] * 10 + [0] * 30


def test_what_cannot_be_started_leaves_nothing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"cannot start .*: No such file or directory \(.*/gone\)"):
        TrialRunner(a_trial(tmp_path / "gone"), tmp_path / "log")


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, False])
def test_it_ends_with_all_its_processes(asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked to stop, or left by whoever followed it: other than a script that is only watched."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(trials, "STOP_GRACE_S", 0.2)
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    source = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    made = dataclasses.replace(a_trial(tmp_path), command=(sys.executable, "-c", source))
    runner = TrialRunner(made, tmp_path / "log")
    for _ in runner.messages():
        if (tmp_path / "log").read_text() == "on\n":
            break
    below = psutil.Process(runner.pid).children(recursive=True)
    assert len(below) == 1
    if asked:
        runner.ask_stop()
    runner.close()
    assert runner.returncode == -15
    _, alive = psutil.wait_procs(below, timeout=5)
    assert not alive
    assert not Path(runner._reports).exists()
    assert os.path.exists(tmp_path / "log")
