"""Means that pass over what is not known, and the one place where array types are defined."""

import math

import numpy as np
import pytest
from scipy import stats

from vitprof.analysis.arrays import Interval, highest, known, mean, median, ratio_of, spread


def test_what_is_not_known_is_passed_over_and_nothing_known_is_nan() -> None:
    values = np.array([3.0, np.nan, 1.0, np.inf, 8.0, -np.inf])
    assert known(values).tolist() == [3.0, 1.0, 8.0]
    assert (mean(values), median(values), highest(values)) == (4.0, 3.0, 8.0)
    for nothing in (np.empty(0), np.full(3, np.nan)):
        assert not len(known(nothing))
        assert all(math.isnan(of(nothing)) for of in (mean, median, highest))


def test_the_robust_spread_is_scipys() -> None:
    """To the digits of `STD_OF_MAD`, which is given with four."""
    values = np.random.default_rng(0).lognormal(0, 0.5, 101)
    expected = stats.median_abs_deviation(values, scale="normal")
    assert spread(values) == pytest.approx(expected, rel=1e-5)


def test_a_ratio_of_normal_logarithms_has_the_interval_of_their_difference() -> None:
    """There Zou and Donner's method is exact; that it allows for asymmetry too is its point."""
    above = np.exp(stats.norm.interval(0.95, loc=1.2, scale=0.3))
    below = np.exp(stats.norm.interval(0.95, loc=0.4, scale=0.4))
    found = ratio_of(Interval(np.exp(1.2), *above), Interval(np.exp(0.4), *below))
    low, high = np.exp(stats.norm.interval(0.95, loc=0.8, scale=0.5))
    assert found == pytest.approx((np.exp(0.8), low, high), rel=1e-12)
