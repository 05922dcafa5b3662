"""The cost of recording, against traces that can be added up by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from vitprof.analysis.timing.summary import loader_times_s, recording_cost
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.measure.stopwatch import stopwatch_cost_s
from vitprof.recording.columns import STEP_COLUMNS, Phase

WAIT, HOST, RECORD, COMPUTE = 0.010, 0.005, 0.001, 0.005
STEP = WAIT + HOST + RECORD


def run(n: int = 12, *, queued: bool = False, warmup: int = 2, **columns: Any) -> dict[str, np.ndarray]:
    """Steps of a device that computes while the host does; or, `queued`, of one that has work left while it records."""
    start = 50.0 + STEP * np.arange(n)
    compute_start = start + WAIT + (HOST / 2 if queued else 0.0)
    compute = np.full(n, STEP - 0.001 if queued else COMPUTE)
    gap = np.concatenate([[math.nan], compute_start[1:] - compute_start[:-1] - compute[:-1]])
    known = {
        "step": np.arange(n, dtype=float),
        "epoch": np.zeros(n),
        "warmup": (np.arange(n) < warmup).astype(float),
        "t_start_s": start,
        "data_wait_s": np.full(n, WAIT),
        "host_s": np.full(n, HOST),
        "h2d_s": np.zeros(n),
        "h2d_start_s": start + WAIT,
        "compute_start_s": compute_start,
        "compute_s": compute,
        "gap_s": gap,
    } | columns
    return {name: known.get(name, np.full(n, math.nan)) for name in STEP_COLUMNS}


def test_it_is_the_time_from_a_launch_to_the_next_request_over_the_time_of_a_step() -> None:
    cost = recording_cost(run())
    assert cost.n == 12 - 2 - 1  # neither warm-up nor the last one, which nothing follows
    assert cost.s_per_step == pytest.approx(RECORD)
    assert cost.frac == pytest.approx(RECORD / STEP)


def test_where_the_script_does_something_between_its_steps_nobody_can_tell() -> None:
    assert recording_cost(run(outside_s=np.full(12, RECORD))).n == 0
    some = np.full(12, math.nan)
    some[6] = RECORD
    assert recording_cost(run(outside_s=some)).n == 12 - 2 - 1 - 1


def test_on_a_device_that_is_done_with_the_step_all_of_it_is_exposed() -> None:
    cost = recording_cost(run())
    assert cost.exposed_s_per_step == pytest.approx(RECORD)
    assert cost.exposed_frac == pytest.approx(cost.frac)


def test_behind_queued_work_it_is_hidden() -> None:
    cost = recording_cost(run(queued=True))
    assert cost.s_per_step == pytest.approx(RECORD)
    assert cost.exposed_s_per_step == 0
    assert cost.exposed_frac == 0


def test_one_slow_report_counts_with_its_whole_length() -> None:
    steps = run()
    steps["t_start_s"][6:] += 0.1
    steps["compute_start_s"][6:] += 0.1
    steps["gap_s"][6] += 0.1
    cost = recording_cost(steps)
    assert cost.s_per_step == pytest.approx(RECORD + 0.1 / 9)
    assert cost.frac == pytest.approx((9 * RECORD + 0.1) / (9 * STEP + 0.1))
    assert cost.exposed_s_per_step == pytest.approx(cost.s_per_step)


def test_the_end_of_an_epoch_and_a_phase_in_between_do_not_count() -> None:
    steps = run(epoch=np.repeat([0.0, 1.0], 6))
    assert recording_cost(steps).n == 3 + 4  # the first step of the second epoch is not steady
    launched = steps["t_start_s"][8] + WAIT + HOST
    inside = Phase("evaluate", launched + RECORD / 4, launched + RECORD / 2)
    cost = recording_cost(steps, [inside])
    assert cost.n == 6
    assert cost.s_per_step == pytest.approx(RECORD)
    elsewhere = [Phase("startup", 40.0, 50.0), Phase("shutdown", 60.0, 61.0)]
    assert recording_cost(steps, elsewhere).n == 7


def test_a_lost_step_does_not_count_as_recording() -> None:
    whole = run()
    steps = {name: np.delete(values, 7) for name, values in whole.items()}
    cost = recording_cost(steps)
    assert cost.n == 9 - 2
    assert cost.s_per_step == pytest.approx(RECORD)


def test_without_device_times_the_exposed_part_is_not_known() -> None:
    unknown = np.full(12, math.nan)
    cost = recording_cost(run(compute_start_s=unknown, compute_s=unknown, gap_s=unknown))
    assert cost.frac == pytest.approx(RECORD / STEP)
    assert math.isnan(cost.exposed_frac)
    assert math.isnan(cost.exposed_s_per_step)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_without_two_steady_steps_in_a_row_nothing_is_known(n: int) -> None:
    cost = recording_cost(run(n))
    assert cost.n == 0
    assert math.isnan(cost.frac)
    assert math.isnan(cost.exposed_s_per_step)


def test_runs_of_older_versions_which_lack_host_s_are_not_guessed_at() -> None:
    assert recording_cost(run(host_s=np.full(12, math.nan))).n == 0


@pytest.mark.parametrize(
    ("strategy", "dataset", "notes"),
    [
        ("per-sample", "digits", 2 + 100),
        ("memory", "digits", 2),
        ("threads", "photos", 2 + 200),
        ("tensordataset", "digits", 2),
    ],
)
def test_what_is_noted_inside_the_loader_is_counted(strategy: str, dataset: str, notes: int) -> None:
    config = resolve(RunConfig(strategy=strategy, dataset=dataset, batch_size=100))
    assert loader_times_s(config, 1e-6) == pytest.approx(notes * 1e-6)
    assert loader_times_s(dataclasses.replace(config, loader_times=False), 1e-6) == 0


def test_noting_takes_some_time() -> None:
    assert 0 < stopwatch_cost_s(100) < 1e-3
