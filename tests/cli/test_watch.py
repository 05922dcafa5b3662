"""`watch`: a command from its start to the run that is stored, and whatever may be wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.command_line import Call
from tests.watch import scripts
from vitprof.jobs.command import NOT_WATCHED
from vitprof.store import RunStore

N_STEPS = 2 * scripts.N_SAMPLES // scripts.BATCH


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.slow
def test_a_script_is_watched_and_ends_as_it_would(call: Call, tmp_path: Path, vitprof_home: Path) -> None:
    """The whole way, through a process that Python starts as it always does."""
    report = tmp_path / "run.json"
    script = [sys.executable, "-m", "tests.watch.scripts", "4", "3"]
    command = [sys.executable, "-m", "vitprof", "watch", "--name", "mine", "--json", str(report), "--", *script]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 3, "the script's own"
    losses, foreign = ended.stdout.splitlines()
    err = " ".join(ended.stderr.split())
    assert len(losses.split()) == 2 * N_STEPS
    assert foreign == "", "what vitprof uses elsewhere is not in the script's process"
    assert "the script ended with exit status 3" in err
    assert "nput-bound: training on the CPU stands still" in err
    told = json.loads(report.read_text())
    assert told["summary"]["n_steps"] == 2 * N_STEPS
    store = RunStore()
    (run,) = store.runs()
    store.close()
    assert (run.name, run.status, run.config.batch_size, run.config.workers) == ("mine", "failed", scripts.BATCH, 0)
    assert (run.config.strategy, run.config.dataset, run.config.device) == ("own-script", "Samples", "cpu")
    assert run.verdict is not None
    assert run.verdict["cause"] == "read"
    assert [phase.name for phase in run.phases].count("evaluate") == 3
    for command in ("code", "headroom"):  # nothing of it can be run from here
        status, _, err = call(command, "1")
        assert (status, err.count("\n")) == (2, 1)
        assert "start that again with vitprof watch" in err


def test_a_command_that_trains_nothing(call: Call, vitprof_home: Path) -> None:
    status, _, err = call("watch", "--", sys.executable, "-c", "pass")
    assert status == 0
    assert NOT_WATCHED in " ".join(err.split())


def test_a_command_that_is_not_there(call: Call, vitprof_home: Path) -> None:
    status, _, err = call("watch", "--", "no-such-command")
    assert status == 127
    assert err == "vitprof: cannot start no-such-command: No such file or directory\n"
    store = RunStore()
    assert not store.runs(), "no trace of it"
    store.close()


def test_without_a_store_the_command_runs_all_the_same(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "file"))
    status, _, err = call("watch", "--", sys.executable, "-c", "import sys; sys.exit(4)")
    assert status == 4
    assert err.startswith("vitprof: not watching: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("options", [["--steps", "0"], ["--json", "/no/such/folder/run.json"], []])
def test_a_bad_value_is_one_line(call: Call, options: list[str], vitprof_home: Path) -> None:
    command = ["--", sys.executable, "-c", "pass"] if options else []
    status, _, err = call("watch", *options, *command)
    assert (status, err.count("\n")) == (2, 1)
