"""Series in memory: each row read once, totals by the summary's own rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitprof.analysis.timing.steady import steady_state
from vitprof.config import RunConfig
from vitprof.records import STEP_COLUMNS
from vitprof.store import RunStore
from vitprof.ui.series import Growing, RunSeries


def rows(first: int, n: int, epoch_length: int = 7) -> list[list[float]]:
    """Made-up steps, each figure different from every other."""
    made = []
    for step in range(first, first + n):
        values = dict.fromkeys(STEP_COLUMNS, 0.0)
        values |= {
            "step": step,
            "epoch": step // epoch_length,
            "t_start_s": 10.0 + step,
            "data_wait_s": 0.1 + step / 1000,
            "compute_s": 0.5,
            "gap_s": 0.2 + step / 1000,
            "step_s": 0.7 + step / 1000,
            "exposed_wait_s": 0.05,
            "samples": 4,
            "warmup": float(step < 3),
        }
        made.append([values[name] for name in STEP_COLUMNS])
    return made


@pytest.fixture
def store(tmp_path: Path):
    opened = RunStore(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    yield opened
    opened.close()


def test_rows_arrive_once_however_they_are_cut(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    series = RunSeries(store, run_id)
    done = 0
    for n in (1, 0, 5, 1500, 2, 3000):
        store.append_steps(run_id, rows(done, n))
        done += n
        series.refresh()
        series.refresh()
        assert series.steps()["step"].tolist() == list(range(done))


def test_totals_follow_the_summarys_steady_state(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    series = RunSeries(store, run_id)
    for first, n in ((0, 5), (5, 2), (7, 1), (8, 13)):
        store.append_steps(run_id, rows(first, n))
        series.refresh()
    steps = series.steps()
    steady = steady_state(steps)
    totals = series.totals
    assert totals.steps == steady.sum()
    assert totals.samples == steps["samples"][steady].sum()
    assert totals.gap_s == pytest.approx(steps["gap_s"][steady].sum())
    assert totals.share(totals.data_wait_s) == pytest.approx(
        steps["data_wait_s"][steady].sum() / steps["step_s"][steady].sum()
    )


def test_a_view_handed_out_does_not_change_later() -> None:
    growing = Growing(("x",))
    growing.append({"x": np.arange(3.0)})
    view = growing.view()["x"]
    growing.append({"x": np.arange(5000.0)})
    assert view.tolist() == [0, 1, 2]
    assert growing.view()["x"][:4].tolist() == [0, 1, 2, 0]
    assert growing.n == 5003
