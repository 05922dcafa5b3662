"""TensorBoard itself reads what was written for it."""

import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ui.dashboard import add_run
from vitprof.errors import VitprofError
from vitprof.export import tensorboard
from vitprof.export.tensorboard import (
    MAX_GROUPS,
    STEP_TAGS,
    run_directory,
    tensorboard_zip,
    write_tensorboard,
)
from vitprof.store import RunStore


def read(directory: Path) -> Any:
    """What TensorBoard finds in the directory of a run, every point of it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    found.Reload()
    return found


def test_every_step_can_be_read_back(store: RunStore, tmp_path: Path) -> None:
    ids = [add_run(store, n=12, name="../<b> ü", device="simulated:8,0"), add_run(store, n=4)]
    runs = [store.run(i) for i in ids]
    target = tmp_path / "logs"
    write_tensorboard(store, runs, target)
    assert sorted(p.name for p in target.iterdir()) == sorted(map(run_directory, runs))
    assert run_directory(runs[0]) == "run-1-b--ü-simulated"
    found = read(target / run_directory(runs[0]))
    steps = store.steps(ids[0])
    waits = found.Scalars("step/data_wait_ms")
    assert [e.step for e in waits] == list(range(12))
    assert [e.value for e in waits] == pytest.approx(steps["data_wait_s"] * 1e3)
    assert waits[3].wall_time - waits[0].wall_time == pytest.approx(
        steps["t_start_s"][3] - 100.0, abs=1e-5
    )
    assert found.Scalars("summary/samples_per_s")[0].value == pytest.approx(12_800)
    assert found.Scalars("machine/job_cpu_pct")[0].value == 90.0
    tags = set(found.Tags()["scalars"])
    assert "machine/gpu_util_pct" not in tags  # not available: no event, never 0
    assert {tag for tag, _ in STEP_TAGS.values()} <= tags
    assert len(read(target / run_directory(runs[1])).Scalars("train/loss")) == 4


def test_long_runs_keep_what_stands_out() -> None:
    values = np.ones(3 * MAX_GROUPS)
    values[12_345] = 50.0
    number = np.arange(len(values), dtype=float)
    step, _, kept = tensorboard._thinned(number, number, values)
    assert len(kept) <= 2 * MAX_GROUPS
    assert step[int(kept.argmax())] == 12_345
    assert (np.diff(step) > 0).all()


def test_the_zip_holds_the_directory(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch, which tensorboardX imports where it is: 2 s and 300 MB for nothing."""
    decoy = tmp_path / "path" / "torch"
    decoy.mkdir(parents=True)
    (decoy / "__init__.py").write_text("raise SystemExit('torch was imported')")
    monkeypatch.setenv("PYTHONPATH", str(decoy.parent))
    run = store.run(add_run(store, n=3))
    with zipfile.ZipFile(io.BytesIO(tensorboard_zip(store, [run]))) as archive:
        (name,) = (name for name in archive.namelist() if not name.endswith("/"))
        assert name.startswith(f"tensorboard/{run_directory(run)}/events.out.tfevents.")
        assert archive.testzip() is None


def test_all_or_nothing_or_one_line(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run(add_run(store, n=3))
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    for target, why in (
        (full, "there already"),
        (full / "mine", "there already"),
        (tmp_path / "no/logs", "No such"),
    ):
        with pytest.raises(VitprofError, match=why) as caught:
            write_tensorboard(store, [run], target)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(sys, "executable", "/bin/false")  # as if the child had died without a word
    with pytest.raises(
        VitprofError, match="logs cannot be written: its process ended with status 1"
    ):
        write_tensorboard(store, [run], tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
