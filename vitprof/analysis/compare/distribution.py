"""The empirical distribution of a run's waits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, known

MAX_POINTS = 400
"""Points of a curve at most: more than a chart is pixels high, and 3 kB a run."""


@dataclass(frozen=True)
class Distribution:
    """An empirical distribution function, thinned for a chart; its figures are those of all values, in the values'
    unit.
    """

    n: int
    """Number of values."""
    values: Floats
    """(m,) ascending, each one that occurred, with the smallest and the largest."""
    share: Floats
    """(m,) exact share of all values that are at most this one, 0 to 1; the last is 1."""
    median: float
    p95: float
    """95% of the values are at most this."""
    largest: float


def distribution(values: Floats, *, max_points: int = MAX_POINTS) -> Distribution:
    """Returns the distribution of `values` ((n,), NaN is ignored).

    If there are more than `max_points`, half of the points are spread evenly over the ranks, so the curve between two
    is off by at most 2 / `max_points`, and half get denser towards the largest value: a long tail keeps its shape.
    """
    ordered = np.sort(known(values))
    n = len(ordered)
    if not n:
        none = np.empty(0)
        return Distribution(0, none, none, math.nan, math.nan, math.nan)
    ranks = np.arange(n)
    if n > max_points:
        even = np.linspace(0, n - 1, max_points // 2)
        tail = n - np.geomspace(1, n, max_points // 2)
        ranks = np.unique(np.concatenate([even, tail]).round().astype(int))
    kept = np.unique(ordered[ranks])
    share = np.searchsorted(ordered, kept, side="right") / n
    return Distribution(n, kept, share, _at(ordered, 0.5), _at(ordered, 0.95), float(ordered[-1]))


def _at(ordered: Floats, share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed.

    It is on the curve, which the mean of two values may not be.
    """
    return float(ordered[max(math.ceil(share * len(ordered) - 1e-9) - 1, 0)])
