"""The empirical distribution: exact where it is drawn, thinned without losing its ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.analysis.compare.comparison import MAX_POINTS, distribution

numbers = st.lists(st.floats(0, 1e3, allow_nan=False), min_size=1, max_size=60)


@given(numbers, st.integers(4, 30))
def test_every_point_is_the_exact_share_of_values_at_most_it(values: list[float], points: int) -> None:
    found = distribution(np.array(values), max_points=points)
    known = np.array(values)
    assert [float((known <= v).mean()) for v in found.values] == pytest.approx(found.share.tolist())
    assert (np.diff(found.values) > 0).all()
    assert found.values[0] == known.min()
    assert found.values[-1] == found.largest == known.max()
    assert found.share[-1] == 1
    assert len(found.values) <= points


@given(numbers)
def test_marks_lie_on_the_curve(values: list[float]) -> None:
    found, known = distribution(np.array(values)), np.array(values)
    for mark, share in ((found.median, 0.5), (found.p95, 0.95)):
        assert mark in values
        assert (known <= mark).mean() >= share - 1e-9
        assert (known < mark).mean() < share


def test_a_hundred_thousand_waits_are_a_few_hundred_points_with_their_tail() -> None:
    waits = np.concatenate([np.full(99_990, 0.001), np.arange(1.0, 11.0)])
    spread = np.random.default_rng(0).lognormal(size=100_000)
    found = distribution(waits)
    assert found.values.tolist() == [0.001, *range(1, 11)], "each of the ten long waits is there"
    assert found.n == 100_000
    thinned = distribution(spread)
    assert len(thinned.values) <= MAX_POINTS
    assert np.diff(thinned.share).max() <= 2 / MAX_POINTS + 1e-4


def test_unknown_values_are_passed_over() -> None:
    found = distribution(np.array([math.nan, 3.0, 1.0]))
    assert (found.n, found.median, found.p95) == (2, 1.0, 3.0)
    nothing = distribution(np.array([math.nan]))
    assert (nothing.n, len(nothing.values)) == (0, 0)
    assert math.isnan(nothing.median)
