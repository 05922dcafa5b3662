"""Runs side by side: ratios to a baseline, their range, ties, what is not known; and the mean step taken apart."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.series import made_steps
from vitprof.analysis.compare.comparison import (
    MAX_POINTS,
    against,
    changes,
    distribution,
    slowest,
    step_time,
    with_intervals,
)
from vitprof.analysis.timing.gaps import IDLE_CAUSES, find_gaps, training_time
from vitprof.recording.columns import RunSummary


def summary(speed: float, half: float) -> RunSummary:
    return RunSummary(
        samples_per_s=speed, samples_per_s_low=speed - half, samples_per_s_high=speed + half
    )


def test_ratios_are_to_the_baseline_in_the_order_given_also_where_speeds_are_not_known() -> None:
    fast, base, slow = against([summary(300, 10), summary(100, 5), summary(50, 1)], 1, ["fair"] * 3)
    assert fast.speed_up == pytest.approx(3)
    # by Zou and Donner: narrower than from end to end, as both are seldom at their worst
    assert 290 / 105 < fast.low == pytest.approx(2.827, abs=1e-3)
    assert 310 / 95 > fast.high == pytest.approx(3.188, abs=1e-3)
    assert (slow.speed_up, base.speed_up, base.low, base.high) == (pytest.approx(0.5), 1, 1, 1)
    assert [c.relation for c in (fast, base, slow)] == ["faster", "baseline", "slower"]
    found = against(
        [None, summary(50, 1), RunSummary(samples_per_s=100.0), RunSummary()], 1, ["fair"] * 4
    )
    assert [c.relation for c in found] == ["unknown", "baseline", "unknown", "unknown"]
    assert (found[2].speed_up, [math.isnan(c.speed_up) for c in found]) == (
        2,
        [True, False, False, True],
    )
    assert math.isnan(found[2].low)
    assert {c.relation for c in against([summary(5, 1), None], 1, ["fair"] * 2)} == {"unknown"}
    assert {c.relation for c in against([summary(5, 1)], None, ["fair"])} == {"unknown"}
    assert slowest([None, summary(9, 1), summary(5, 1), summary(5, 2), RunSummary()]) == 2
    assert slowest([None, RunSummary()]) is slowest([]) is None


def test_a_ratio_that_is_not_firm_is_given_and_one_of_unlike_runs_is_not() -> None:
    every = [summary(100, 1), summary(330, 1), summary(330, 1), summary(330, 1)]
    _, busy, hot, unlike = against(every, 0, ["fair", "disturbed", "other conditions", "unlike"])
    for other in (busy, hot):
        assert (other.relation, other.speed_up) == ("not firm", pytest.approx(3.3))
        assert other.low < 3.3 < other.high
    assert unlike.relation == "not comparable"
    assert math.isnan(unlike.speed_up)


def test_changes_are_of_the_parts_of_a_step_with_their_intervals() -> None:
    """A step waited 5 ms for data, and 1 ms, with some noise; it computed for 5 ms in both."""
    noise = np.resize([0.0, 2e-4, -2e-4, 1e-4, -1e-4], 40)
    means = []
    for wait_s in (0.005, 0.001):
        steps = made_steps(list(wait_s + noise), 0.005, samples=128, host_s=0.0)
        training = training_time(steps, [])
        mean = step_time(training.gaps, 128.0)
        assert mean is not None
        means.append(with_intervals(mean, training.gaps, training.starts))
    by = {change.cause: change.by for change in changes(*means, "step")}
    assert by["data_wait"].value == pytest.approx(-4, abs=0.05)
    assert -4.5 < by["data_wait"].low < -4 < by["data_wait"].high < -3.5
    assert by["compute"].value == pytest.approx(0, abs=1e-6), "also where it stays the same"
    assert next(iter(by)) == "data_wait", "the largest first"
    a_sample = {change.cause: change.by for change in changes(*means, "sample")}
    assert a_sample["data_wait"].value == pytest.approx(-4000 / 128, abs=0.5)


@pytest.mark.parametrize(
    ("half", "speeds", "said"), [(5, (104, 96, 100), "undecided"), (0.5, (102, 98.5), "equal")]
)
def test_overlapping_intervals_are_undecided_and_within_5_percent_equal(
    half: float, speeds: Any, said: str
) -> None:
    """Also where the intervals lie apart: nobody would change a setting for it."""
    every = [summary(speed, half) for speed in (100, *speeds)]
    _, *others = against(every, 0, ["fair"] * len(every))
    assert {other.relation for other in others} == {said}


def test_the_mean_step_is_taken_apart() -> None:
    steps = made_steps([0.002, 0.004, 0.006], [0.010] * 3, h2d=0.001, samples=20)
    found = step_time(find_gaps(steps, ()), 20)
    assert set(found.seconds) == {"compute", "launch_idle", *IDLE_CAUSES}
    # the first step's gap lies before the span; the others wait 4 and 6 ms
    assert found.scaled("step")["compute"] == pytest.approx(10)
    assert found.whole_s == pytest.approx(sum(found.seconds.values()))
    assert sum(found.scaled("share").values()) == pytest.approx(100)
    assert found.scaled("sample")["compute"] == pytest.approx(500)
    assert found.seconds["data_wait"] > found.seconds["h2d"] > 0
    steps = made_steps([0.002] * 3, [0.010] * 3)
    steps["launch_idle_s"][:2] = (
        0.006  # of the third, a smaller batch, nobody knows: it counts as the others do
    )
    found = step_time(find_gaps(steps, ()), 20)
    ms = found.scaled("step")
    assert (ms["compute"], ms["launch_idle"]) == (pytest.approx(4), pytest.approx(6))
    assert step_time(find_gaps(made_steps([], []), ()), math.nan) is None


numbers = st.lists(st.floats(0, 1e3, allow_nan=False), min_size=1, max_size=60)


@given(numbers, st.integers(4, 30))
def test_every_point_is_the_exact_share_of_values_at_most_it(
    values: list[float], points: int
) -> None:
    found, known = distribution(np.array(values), max_points=points), np.array(values)
    assert [float((known <= v).mean()) for v in found.values] == pytest.approx(found.share.tolist())
    assert (np.diff(found.values) > 0).all()
    assert (found.values[0], found.values[-1], found.largest) == (
        known.min(),
        known.max(),
        known.max(),
    )
    assert found.share[-1] == 1
    assert len(found.values) <= points


def test_a_hundred_thousand_waits_are_a_few_hundred_points_with_their_tail() -> None:
    waits = np.concatenate([np.full(99_990, 0.001), np.arange(1.0, 11.0)])
    spread = np.random.default_rng(0).lognormal(size=100_000)
    found = distribution(waits)
    assert found.values.tolist() == [0.001, *range(1, 11)], "each of the ten long waits is there"
    assert found.n == 100_000
    thinned = distribution(spread)
    assert len(thinned.values) <= MAX_POINTS
    assert np.diff(thinned.share).max() <= 2 / MAX_POINTS + 1e-4
    found = distribution(np.array([math.nan, 3.0, 1.0]))
    assert (found.n, found.median, found.p95) == (2, 1.0, 3.0)
    nothing = distribution(np.array([math.nan]))
    assert (nothing.n, len(nothing.values), math.isnan(nothing.median)) == (0, 0, True)
