"""Live figures and the verdict in the script's own run of a tracker: with a package that passes for MLflow, and real
ones where they are installed. Training is never disturbed."""

import contextlib
import json
import os
import struct
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import ROOT
from tests.command_line import Call, one_line
from tests.jobs.sending import columns
from tests.watch.watching import Host
from vitprof.store import RunStore
from vitprof.watch import trackers
from vitprof.watch.core.tracked import tracked
from vitprof.watch.trackers import LiveLog

PACKAGE = """
import json, os, sys, threading
from types import SimpleNamespace
class MlflowClient:
    def __init__(self, uri): self.uri = uri
    def log_batch(self, run_id, metrics, tags):
        if os.environ.get("BROKEN"):
            raise ConnectionError("no server\\nanswers")
        row = [self.uri, run_id, threading.current_thread().name, os.getcwd(), dict(metrics), dict(tags)]
        with open(os.environ["LOGGED"], "a") as file:
            print(json.dumps(row), file=file)
def get_tracking_uri(): return "sqlite:///mine.db"
entities = SimpleNamespace(Metric=lambda name, value, *_: (name, value), RunTag=lambda name, text: (name, text))
started = [SimpleNamespace(info=SimpleNamespace(run_id="r1"))]
sys.modules["mlflow.entities"] = entities
sys.modules["mlflow.tracking.fluent"] = SimpleNamespace(_active_run_stack=started)
"""
"""A package that passes for MLflow: a run has begun once it is imported."""
BEGIN = {
    "pretended": "import mlflow; end = str",
    "mlflow": "import mlflow; mlflow.set_tracking_uri('sqlite:///m.db'); mlflow.start_run(); end = mlflow.end_run",
    "wandb": "import wandb; wandb.init(project='p', mode='offline'); end = wandb.finish",
    "none": "end = str",
}
N_STEPS = 200
"""Of the script. Its steps take 9 ms, and are known half a second after they have ended, twice a second."""
SCRIPT = """
import os, random, sys, threading, time
import numpy as np, torch
from torch.utils.data import DataLoader
{begin}
import vitprof.watch.trackers as trackers
trackers.LiveLog.__init__.__defaults__ = (0.1,)
torch.manual_seed(0); random.seed(0); np.random.seed(0)
torch.set_num_threads(1)
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4 * {steps}
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.rand(8) + index
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
losses = []
for i, batch in enumerate(DataLoader(Slow(), batch_size=4, shuffle=True)):
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(float(loss).hex())
    {each}
end()
with open(sys.argv[1], "w") as file:
    print(losses, random.random(), np.random.rand(), torch.rand(1).item(), file=file)
"""


@pytest.fixture(autouse=True)
def _where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LOGGED", str(tmp_path / "logged"))
    for name in ("WANDB_SILENT", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")


def watched(
    call: Call,
    tmp_path: Path,
    begin: str,
    name: str = "mlflow",
    each: str = "",
    steps: int = N_STEPS,
) -> tuple[str, str]:
    """Watches the script; returns what became of the training, and what it and the command print on standard error."""
    (tmp_path / "train.py").write_text(SCRIPT.format(begin=BEGIN[begin], each=each, steps=steps))
    out = tmp_path / f"out-{begin}-{os.environ.get('BROKEN', '')}"
    log_to = ["--log-to", name] if name else []
    script = f"exec {sys.executable} train.py {out} 2> {tmp_path}/errors"
    status, _, err = call("watch", "--quiet", *log_to, "--", "/bin/sh", "-c", script)
    err = " ".join(((tmp_path / "errors").read_text() + err).split())
    assert status == 0, err
    return out.read_text(), err


@pytest.fixture
def alone(host: Host, tmp_path: Path) -> str:
    """What becomes of the training where nobody watches."""
    out = tmp_path / "alone"
    arguments = f"import sys; sys.argv = ['', {str(out)!r}]\n"
    source = arguments + SCRIPT.format(begin=BEGIN["none"], each="", steps=N_STEPS)
    script = host.running("tests.watch.in_python")
    script.run("example", watched=False, listen=False, source=source)
    return out.read_text()


def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "mlflow.py").write_text(PACKAGE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "packages"), str(ROOT)]))


@pytest.mark.measured
def test_figures_come_live_and_the_verdict_at_the_end_and_training_is_the_same(
    call: Call, tmp_path: Path, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path)
    trained, _ = watched(call, tmp_path, "pretended")
    assert trained == alone
    *live, last = [json.loads(line) for line in (tmp_path / "logged").read_text().splitlines()]
    assert len(live) >= 3
    assert {tuple(row[:4]) for row in live} == {
        ("sqlite:///mine.db", "r1", "vitprof-tracker", str(tmp_path))
    }
    for *_, figures, tags in live:
        assert not tags
        assert set(figures) == {f"vitprof/{name}" for name in ("samples_per_s", *trackers.SHARES)}
        assert 0.5 < figures["vitprof/data_wait_frac"] <= 1.0
    with contextlib.closing(RunStore()) as store:
        run = store.runs()[0]
    assert run.summary is not None
    assert run.verdict is not None
    uri, run_id, thread, where, figures, tags = last
    assert (uri, run_id, thread, where) == ("sqlite:///mine.db", "r1", "MainThread", str(tmp_path))
    assert figures["vitprof/whole_run/data_wait_frac"] == run.summary.data_wait_frac
    assert tags["vitprof.verdict"] == run.verdict.kind
    assert (tags["vitprof.sentence"], tags["vitprof.run"]) == (run.verdict.sentence, str(run.id))
    assert "mlflow" not in json.dumps(run.facts | run.environment), "a server's token is in no run"


def test_a_tracker_that_is_not_known_or_has_no_run_is_one_line(call: Call) -> None:
    script = ("--", sys.executable, "-m", "tests.cli.telling", "1")
    err = call("watch", "--quiet", "--log-to", "mlflow", *script)[2]
    assert "nothing was written to MLflow: the script had no active run of it" in err
    assert "choose one of mlflow, wandb" in one_line(
        call, "watch", "--log-to", "neptune", "--", "true"
    )


@pytest.mark.measured
def test_a_tracker_that_fails_is_one_line_each_time_and_training_goes_on(
    call: Call, tmp_path: Path, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path)
    monkeypatch.setenv("BROKEN", "1")
    trained, err = watched(call, tmp_path, "pretended")
    assert trained == alone
    why = "ConnectionError: no server answers"
    assert err.count(why) == 2
    assert f"vitprof: no more figures are written to mlflow ({why}); training goes on" in err
    assert f"vitprof: the verdict was not written to MLflow: {why}" in err


def test_figures_are_those_of_the_steps_since_the_last_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[dict[str, float], int]] = []
    came = threading.Event()

    class Fake:
        def active(self, thread: int) -> dict[str, Any]:
            assert thread == threading.main_thread().ident
            return {"run_id": "1", "local": False}

        def log(self, run: Any, figures: dict[str, float], step: int) -> None:
            written.append((figures, step))
            came.set()

    monkeypatch.setattr(trackers, "tracker", lambda name: Fake())
    trains = threading.get_ident()
    live = LiveLog(f"fake:{tmp_path / 'run.json'}", threading.RLock(), trains, 0.01)

    def add(steps: dict[str, np.ndarray]) -> None:
        live.add(**json.loads(json.dumps(tracked(steps)).replace("NaN", "null")))

    known = {"samples": 8, "step_s": 0.5, "data_wait_s": 0.25, "exposed_wait_s": 0.125}
    add(columns(3, step=range(3), warmup=[1, 1, 0], gap_s=0.25, **known))
    assert came.wait(60)
    assert not tracked(columns(2, step=range(3, 5), warmup=1, gap_s=0.25, **known))
    add(columns(2, step=range(5, 7), gap_s=np.nan, **known | {"samples": 0}))
    live.close()
    waits = {"vitprof/data_wait_frac": 0.5, "vitprof/exposed_wait_frac": 0.25}
    assert written == [
        ({"vitprof/samples_per_s": 16.0, **waits, "vitprof/device_idle_frac": 0.5}, 2),
        (waits, 6),  # what is not known is not written
    ]
    assert json.loads((tmp_path / "run.json").read_text())["run"] == {"run_id": "1", "local": False}


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow_itself(call: Call, tmp_path: Path, vitprof_home: Path) -> None:
    import mlflow

    _, err = watched(
        call,
        tmp_path,
        "mlflow",
        each="i % 20 or mlflow.log_metric('loss', float(loss), step=i)",
        steps=100,
    )
    assert "vitprof" not in err
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/m.db")
    (run,) = client.search_runs(["0"])
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 5
    shares = client.get_metric_history(run.info.run_id, "vitprof/data_wait_frac")
    assert all(0.0 < share.value <= 1.0 for share in shares)
    assert shares[-1].step > 50
    assert {"vitprof.verdict", "vitprof.sentence"} <= set(run.data.tags)


def offline_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a run that W&B has written: a log of LevelDB's format, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part, rows = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part, at = part + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            record, part = Record.FromString(part), b""
            if record.WhichOneof("record_type") == "history":
                rows.append(
                    {
                        item.key or item.nested_key[0]: item.value_json
                        for item in record.history.item
                    }
                )
    return rows


@pytest.mark.skipif(find_spec("wandb") is None, reason="W&B is not installed")
def test_wandb_itself_offline(call: Call, tmp_path: Path, vitprof_home: Path) -> None:
    """The script's own rows keep their numbers, and have the figures."""
    _, err = watched(
        call,
        tmp_path,
        "wandb",
        "wandb",
        each="i % 5 or wandb.log({'loss': i}, step=10 * i)",
        steps=100,
    )
    assert "the verdict was not written to W&B: nothing can be added to an offline run" in err
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = offline_rows(path)
    assert [(int(row["_step"]), int(row["loss"])) for row in rows] == [
        (10 * i, i) for i in range(0, 100, 5)
    ]
    shares = [
        float(row["vitprof/data_wait_frac"]) for row in rows if "vitprof/data_wait_frac" in row
    ]
    assert len(shares) >= 2
    assert all(0.0 < share <= 1.0 for share in shares)
