"""One step by its position, by a moment of a chart, and the one that is typical."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitprof.analysis.timing.gaps import find_gaps
from vitprof.analysis.timing.loading import by_worker
from vitprof.analysis.timing.timeline import after_largest_gap, one_step, step_at, typical_step


@pytest.fixture
def steps(make_steps: Any) -> dict[str, np.ndarray]:
    """Ten steps of 30 ms wait and 10 ms compute. Two workers made their batches in 10, 20, 30 ... ms."""
    n = 10
    trace: dict[str, np.ndarray] = make_steps(np.full(n, 0.03), np.full(n, 0.01))
    trace["worker"] = np.arange(n) % 2.0
    trace["made_end_s"] = trace["t_start_s"] + 0.025
    trace["made_start_s"] = trace["made_end_s"] - 0.01 * (1 + np.arange(n))
    trace["decode_s"] = np.full(n, 0.004)
    trace["hand_over_s"] = np.full(n, 0.005)
    return trace


def test_a_step_has_the_figures_of_its_row(steps: Any) -> None:
    step = one_step(steps, 3)
    assert (step.number, step.worker) == (3, 1)
    assert step.stages_s == {"decode": 0.004, "hand_over": 0.005}, "what the loader did not tell is not there"
    assert (step.made_s, step.lay_ready_s) == (pytest.approx(0.04), pytest.approx(-0.025))
    assert step.got_s - step.asked_s == pytest.approx(step.data_wait_s)


@pytest.mark.parametrize("began", [0.0, 100.0])
def test_the_step_at_a_moment(steps: Any, began: float) -> None:
    for at in (0, 4, 9):
        begin = 100 + 0.04 * at
        for moment in (begin + 1e-5, begin + 0.03, begin + 0.04):  # in its gap, as its compute begins, as it ends
            assert step_at(steps, (moment - began) + began) == at
        assert step_at(steps, begin + 0.03, of_wait=True) == at
    assert step_at(steps, 1e9) == 9


def test_a_copy_that_is_late_does_not_move_the_wait_to_another_step(steps: Any) -> None:
    steps["compute_start_s"] = steps["compute_start_s"] + 0.05  # the device is behind
    assert step_at(steps, steps["t_start_s"][5] + 0.03, of_wait=True) == 5
    assert step_at(steps, steps["t_start_s"][5] + 0.03) == 4


def test_the_typical_batch_is_the_median_one(steps: Any) -> None:
    keep = np.arange(10) >= 3
    assert typical_step(steps, keep) == 6
    steps["made_end_s"][6] = np.nan
    assert typical_step(steps, keep) == 5
    assert typical_step(steps, np.zeros(10, dtype=bool)) is None


def test_the_largest_gap_is_looked_for_among_those_that_count(make_steps: Any) -> None:
    waits = np.array([0.5, 0.01, 0.01, 0.2, 0.01, 0.03])
    steps = make_steps(waits, np.full(6, 0.01), warmup=1)
    assert after_largest_gap(find_gaps(steps, ()).only(np.arange(6) > 0)) == 3
    assert after_largest_gap(find_gaps(steps, ()).only(np.arange(6) >= 4)) == 5


def test_each_worker_has_its_batches(steps: Any) -> None:
    even, odd = by_worker(steps, np.ones(10, dtype=bool))
    assert (even.worker, even.n_batches, odd.worker, odd.n_batches) == (0, 5, 1, 5)
    assert (even.made_s, odd.made_s) == (pytest.approx(0.05), pytest.approx(0.06))
    assert even.busy_frac == pytest.approx(0.25 / 0.4)
    steps["worker"][:] = np.nan
    assert by_worker(steps, np.ones(10, dtype=bool)) == ()
