"""Series in memory: each row read once, totals by the summary's own rule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.suspensions import plain_stops
from vitprof.config import RunConfig
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, Stop
from vitprof.store import RunStore
from vitprof.ui.series import STEP_NAMES, Growing, RunSeries


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


@pytest.mark.slow
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


class OneRun:
    """A store that holds the steps of one run, in memory."""

    def __init__(self, epoch: list[int], warmup: list[bool]) -> None:
        n = len(epoch)
        self.columns = {name: np.arange(n) + 10.0 * i for i, name in enumerate(STEP_NAMES)}
        self.columns |= {"step": np.arange(n, dtype=float), "epoch": np.array(epoch, dtype=float)}
        self.columns["warmup"] = np.array(warmup, dtype=float)
        self.written = 0

    def steps_in_parts(self, run_id: int, *, after: int, names: tuple[str, ...]) -> Iterator[Series]:
        middle = (after + 1 + self.written) // 2
        for first, last in ((after + 1, middle), (middle, self.written)):
            yield {name: self.columns[name][first:last] for name in names}

    def telemetry(self, run_id: int, *, after: int) -> Series:
        return {name: np.empty(0) for name in ("seq", *TELEMETRY_COLUMNS)}


@pytest.mark.slow
@given(
    steps=st.lists(st.tuples(st.sampled_from([0, 0, 1]), st.booleans()), max_size=30),
    every_step_begins_an_epoch=st.booleans(),
    cuts=st.lists(st.integers(1, 9), max_size=12),
)
def test_totals_are_those_of_the_analysis_rule_at_every_refresh(
    steps: list[tuple[int, bool]], every_step_begins_an_epoch: bool, cuts: list[int]
) -> None:
    epochs = list(range(len(steps))) if every_step_begins_an_epoch else list(accumulate(step for step, _ in steps))
    run = OneRun(epochs, [warmup for _, warmup in steps])
    series = RunSeries(cast(RunStore, run), 1)
    for cut in [*cuts, len(steps)]:
        run.written = min(run.written + cut, len(steps))
        series.refresh()
        steady = steady_state(series.steps())
        totals = series.totals
        assert totals.steps == steady.sum()
        for name in ("samples", "step_s", "data_wait_s", "exposed_wait_s", "gap_s", "compute_s"):
            assert getattr(totals, name) == pytest.approx(series.steps()[name][steady].sum())


def test_where_every_step_begins_an_epoch_the_tiles_count_what_the_summary_counts(store: RunStore) -> None:
    """A batch as large as the set: eight steps, three more of warm-up."""
    run_id = store.create_run(RunConfig())
    store.append_steps(run_id, rows(0, 11, epoch_length=1))
    series = RunSeries(store, run_id)
    series.refresh()
    assert series.totals.steps == 8
    assert series.totals.samples_per_s > 0


def test_a_view_handed_out_does_not_change_later() -> None:
    growing = Growing(("x",))
    growing.append({"x": np.arange(3.0)})
    view = growing.view()["x"]
    growing.append({"x": np.arange(5000.0)})
    assert view.tolist() == [0, 1, 2]
    assert growing.view()["x"][:4].tolist() == [0, 1, 2, 0]
    assert growing.n == 5003


def test_steps_that_a_stop_left_out_are_read_again(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    series = RunSeries(store, run_id)
    store.append_steps(run_id, rows(0, 20))
    series.refresh()
    n = series.totals.steps
    store.mark_warmup(run_id, [10, 11])
    store.mark_warmup(run_id, [])
    facts = {"stops": plain_stops([Stop("stopped", 20.0, 21.0, 1.0)])}
    series.refresh(facts)
    series.refresh(facts)
    assert series.totals.steps == n - 2
    assert series.steps()["warmup"][9:13].tolist() == [0, 1, 1, 0]
