"""95% intervals of a ratio of sums over steps, by a bootstrap of blocks of neighbouring steps.

And of the ratio of two figures that have such intervals.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vitprof.analysis.arrays import Floats

BOOTSTRAP_BLOCKS = 20
BOOTSTRAP_RESAMPLES = 1000
MIN_BLOCKS = 4
"""With fewer blocks a bootstrap interval is narrower than the truth; none is given then."""


class Interval(NamedTuple):
    """An estimate with its 95% interval; NaN where it is not known."""

    value: float
    low: float
    high: float


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def ratio_intervals(parts: Floats, whole: Floats) -> list[Interval]:
    """sum(part) / sum(whole) for each row of `parts` (m, n), with `whole` (n,): one value for each step.

    Drawn are up to 20 runs of neighbouring steps, because neighbours are not independent (Kuensch 1989); every row
    sees the same draws. Fewer than four steps give no interval, a `whole` that sums to 0 not even a value.
    """
    sums = parts.sum(axis=1)
    whole_sum = float(whole.sum())
    if not whole_sum > 0:
        return [UNKNOWN] * len(parts)
    blocks = min(BOOTSTRAP_BLOCKS, len(whole))
    if blocks < MIN_BLOCKS:
        return [Interval(float(s) / whole_sum, math.nan, math.nan) for s in sums]
    edges = np.linspace(0, len(whole), blocks + 1).astype(int)[:-1]
    per_block = np.add.reduceat(parts, edges, axis=1)
    whole_block = np.add.reduceat(whole, edges)
    drawn = np.random.default_rng(0).integers(blocks, size=(BOOTSTRAP_RESAMPLES, blocks))
    times_drawn = np.stack([(drawn == b).sum(axis=1) for b in range(blocks)]).astype(float)  # (blocks, resamples)
    drawn_whole = whole_block @ times_drawn
    if not (drawn_whole > 0).all():  # a resample without any time: no ratio, so no interval
        return [Interval(float(s) / whole_sum, math.nan, math.nan) for s in sums]
    low, high = np.percentile((per_block @ times_drawn) / drawn_whole, [2.5, 97.5], axis=1)
    return [Interval(*(float(v) for v in row)) for row in zip(sums / whole_sum, low, high, strict=True)]


def ratio_interval(part: Floats, whole: Floats) -> Interval:
    """`ratio_intervals` of one part."""
    return ratio_intervals(np.asarray(part)[None], whole)[0]


def ratio_of(above: Interval, below: Interval) -> Interval:
    """`above` / `below`, both above 0 and independent of each other, with its interval.

    From the two single intervals, on logarithms, as in Zou and Donner (Statistics in Medicine 2008), which allows for
    asymmetry.
    """
    a, b = (Interval(*(math.log(v) if v > 0 else math.nan for v in interval)) for interval in (above, below))
    ratio = a.value - b.value
    low = ratio - math.hypot(a.value - a.low, b.high - b.value)
    high = ratio + math.hypot(a.high - a.value, b.value - b.low)
    return Interval(*(math.exp(v) for v in (ratio, low, high)))
