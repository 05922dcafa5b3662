"""The command line with runs: what it prints, writes, keeps and returns."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from tests import ROOT
from tests.cli.json_objects import not_described
from tests.cli.json_objects import told as read_json
from tests.command_line import Call, one_line, succeeds
from tests.csv_cells import csv_rows, read_csv_text
from tests.engine_fixtures import digits_home, full_home, small_home, wait_until  # noqa: F401
from vitprof import cli
from vitprof.cli.common.progress import progress
from vitprof.config import models
from vitprof.datasets import mnist
from vitprof.engine.trainer import TorchTrainer
from vitprof.export.tables import SUMMARY_HEADER
from vitprof.home import home
from vitprof.jobs.scheduling import MachineLock
from vitprof.recording.columns import SCHEMA_VERSION
from vitprof.recording.shared_machine import SHARED
from vitprof.store import RunStore

HERE = ["--threads", "1", "--device", "cpu", "--isolation", "thread"]
QUICK = ["run", "--strategy", "memory", "--batch-size", "50", "--steps", "8", *HERE]


@pytest.mark.usefixtures("small_home")
class TestRun:
    def test_json_is_one_object_and_nothing_else(self, call: Call) -> None:
        out = succeeds(call, *QUICK, "--name", "a name", "--json")
        run = read_json("run", out)
        assert out == json.dumps(run, indent=2) + "\n"
        assert {
            "schema_version",
            "run_id",
            "name",
            "status",
            "config",
            "environment",
            "summary",
        } <= run.keys()
        assert run["schema_version"] == SCHEMA_VERSION
        assert (run["name"], run["status"], run["error"]) == ("a name", "done", None)
        assert (run["config"]["strategy"], run["config"]["batch_size"]) == ("memory", 50)
        assert (
            run["config"]["lr"] == models.MODELS["tiny"].lr
        )  # what was used, not only what was asked for
        assert {"torch", "device_name", "platform"} <= run["environment"].keys()
        assert not not_described("run", run)
        known = {k for k, v in run["summary"].items() if v is not None}
        assert known >= {
            "samples_per_s",
            "epoch_s",
            "step_ms_p95",
            "data_wait_frac",
            "loss_last",
            "test_accuracy",
        }
        assert run["summary"]["n_steps"] == 8
        if run["environment"]["device"] == "cpu":
            assert (
                run["summary"]["gpu_util_pct_mean"] is run["summary"]["gpu_mem_peak_bytes"] is None
            )

    def test_loader_only_and_anyway_beside_the_job_of_another_program(self, call: Call) -> None:
        other = MachineLock(7, "cpu", shares=False, store_url="sqlite:///elsewhere")
        assert other.acquire()
        status, out, err = call(*QUICK, "--loader-only", "--json", "--anyway", "--name", "n" * 201)
        other.release()
        told = read_json("run", out)
        summary, (notice,) = told["summary"], told["notices"]
        cut = "vitprof: --name cut to the first 200 characters: names are no longer than that\n"
        assert (status, told["name"], err) == (0, "n" * 200, f"{cut}{notice}\n")
        assert summary["loss_first"] is summary["loss_last"] is summary["test_accuracy"] is None
        assert summary["device_idle_frac"] is summary["compute_frac"] is None
        assert summary["samples_per_s"] > 0
        assert notice.startswith("run 7 of another store on cpu (")
        assert notice.endswith(SHARED)

    def test_for_a_person_and_as_csv(
        self, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Quiet in a pipe but for the result, also with FORCE_COLOR; names are text, not markup, and no formulas."""
        monkeypatch.setenv("FORCE_COLOR", "1")
        name = '=1+1, "quoted" [/oops] :dog:'
        out = succeeds(call, *QUICK, "--name", name, "--csv", str(tmp_path / "run.csv"))
        assert f"run 1: {name}" in out
        assert all(
            label in out
            for label in ("Samples/s", "Time of an epoch", "Data wait", "Device idle", "Accuracy")
        )
        assert re.search(r"Compute of a step .*: forward .*%, backward .*%, optimizer .*%", out)
        assert "n/a" not in out
        (row,) = csv_rows(tmp_path / "run.csv")
        assert tuple(row) == SUMMARY_HEADER
        assert row["name"].startswith("'=")
        assert read_csv_text(row["name"]) == name
        assert (row["strategy"], row["batch_size"], row["n_steps"], row["status"]) == (
            "memory",
            "50",
            "8",
            "done",
        )
        assert float(row["samples_per_s"]) > 0
        assert row["n_divided_steps"] == row["n_steady_steps"] != "0"
        parts = ("forward", "backward", "optimizer", "other")
        assert sum(float(row[f"{part}_compute_frac"]) for part in parts) == pytest.approx(1)
        assert row["gpu_util_pct_mean"] == ""

    def test_progress_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a job says of itself is shown as it is."""
        shown = io.StringIO()
        monkeypatch.setattr(
            cli.terminal, "err", Console(file=shown, force_terminal=True, width=100)
        )
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        with progress() as show:
            show("starting", None)
            show("[/bracket] of 8", 0.9)
            show("[/bracket] of 9", 0.5)  # something else, which begins from 0
        assert "[/bracket] of 9" in shown.getvalue()
        assert "50%" in shown.getvalue()

    def test_a_csv_that_fails_hides_no_result(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            Path, "replace", Mock(side_effect=OSError(28, "No space left on device"))
        )
        status, out, err = call(*QUICK, "--no-evaluate", "--json", "--csv", str(tmp_path / "x.csv"))
        assert read_json("run", out)["status"] == "done"
        assert (status, err) == (
            1,
            f"vitprof: {tmp_path / 'x.csv'} cannot be written: No space left on device\n",
        )
        assert not list(tmp_path.glob("*.csv")) + list(tmp_path.glob(".*.tmp"))


@pytest.mark.usefixtures("small_home")
class TestFailure:
    def test_of_the_job(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            TorchTrainer, "step", Mock(side_effect=RuntimeError("the model\nhas lost its head"))
        )
        monkeypatch.setattr(
            "vitprof.jobs.child.traceback.print_exc", lambda: None
        )  # goes to the log otherwise
        status, out, err = call(*QUICK, "--json")
        run = read_json("run", out)
        assert (status, run["status"], run["error"]) == (1, "failed", "RuntimeError: the model")
        assert (run["summary"]["n_steps"], err) == (
            0,
            "vitprof: run 1 failed: RuntimeError: the model\n",
        )
        status, out, err = call(*QUICK)
        assert (status, out, err) == (1, "", "vitprof: run 2 failed: RuntimeError: the model\n")

    def test_a_damaged_or_missing_file(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = tmp_path / "copy" / "data" / "digits"
        shutil.copytree(home() / "data", copy.parent)
        monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "copy"))
        path, labels = (mnist.raw_dir(copy) / mnist.FILES[number] for number in (0, 3))
        whole = path.read_bytes()
        moved = labels.rename(tmp_path / "labels")
        err = one_line(call, *QUICK, status=1)
        assert labels.name in err
        assert err.endswith(f"No such file or directory); delete {copy} and it is made again\n")
        moved.rename(labels)
        changed = whole[:500] + b"\xff\x00\xff" + whole[503:]
        damages = (("memory", whole[:-1]), ("per-sample", b""), ("memory", changed))
        for number, (strategy, damaged) in enumerate(damages, 2):
            path.write_bytes(damaged)
            err = one_line(call, *QUICK, "--strategy", strategy, status=1)
            assert err.startswith(f"vitprof: run {number} failed: {path} is damaged (")
            assert err.endswith(f"delete {copy} and it is made again\n")


@pytest.mark.measured
@pytest.mark.usefixtures("full_home")
def test_ctrl_c_keeps_what_was_measured(mine: RunStore) -> None:
    """The real program, in a process of its own as its jobs are."""
    options = (
        "--strategy memory --threads 1 --no-evaluate --epochs 1000 --device simulated:20,0 --json"
    )
    command = [sys.executable, "-m", "vitprof", "run", *options.split()]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        wait_until(lambda: mine.n_steps(1), "the first steps")
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode == 130
    assert err == "vitprof: run 1 was stopped; what was measured until then is kept\n"
    run, steps = mine.run(1), mine.steps(1)["step"].tolist()
    assert run.status == "stopped"
    assert run.summary is not None
    assert run.summary.n_steps == len(steps) > 0
    assert steps == list(range(len(steps)))
    shown = read_json("run", out)
    assert (shown["status"], shown["summary"]["n_steps"]) == ("stopped", len(steps))
