"""Means that pass over what is not known, and the one place where array types are defined."""

import math

import numpy as np

from vitprof.analysis.arrays import highest, known, mean, median


def test_what_is_not_known_is_passed_over_and_nothing_known_is_nan() -> None:
    values = np.array([3.0, np.nan, 1.0, np.inf, 8.0, -np.inf])
    assert known(values).tolist() == [3.0, 1.0, 8.0]
    assert (mean(values), median(values), highest(values)) == (4.0, 3.0, 8.0)
    for nothing in (np.empty(0), np.full(3, np.nan)):
        assert not len(known(nothing))
        assert all(math.isnan(of(nothing)) for of in (mean, median, highest))
