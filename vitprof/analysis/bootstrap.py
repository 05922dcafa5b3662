"""Intervals of ratios: of sums over steps, by a block bootstrap, and of two figures that have intervals themselves."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vitprof.analysis.arrays import Floats

BOOTSTRAP_BLOCKS = 20
BOOTSTRAP_RESAMPLES = 1000
MIN_BLOCKS = 4
"""Blocks below which no interval is given: the bootstrap's would be narrower than the truth."""


class Interval(NamedTuple):
    """An estimate and its interval, 95% unless a function takes another level; NaN where a figure is not known."""

    value: float
    low: float
    high: float


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def ratio_intervals(parts: Floats, whole: Floats) -> list[Interval]:
    """Returns sum(part) / sum(whole) with its 95% interval for each row of `parts`.

    `parts` is (m, n) and `whole` (n,), with one value a step. The bootstrap draws up to 20 blocks of neighbouring
    steps, because neighbours are not independent (Kuensch 1989). Every row sees the same draws. With fewer than four
    steps there is no interval; if `whole` sums to 0, there is no value either.
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
    """Returns `ratio_intervals` of a single part, (n,)."""
    return ratio_intervals(np.asarray(part)[None], whole)[0]


def ratio_of(above: Interval, below: Interval) -> Interval:
    """Returns `above` / `below`, both above 0 and independent of each other, with its interval.

    Combines the two single intervals on logarithms by the method of Zou and Donner (Statistics in Medicine 2008), which
    allows for asymmetry.
    """
    a, b = (Interval(*(math.log(v) if v > 0 else math.nan for v in interval)) for interval in (above, below))
    ratio = a.value - b.value
    low = ratio - math.hypot(a.value - a.low, b.high - b.value)
    high = ratio + math.hypot(a.high - a.value, b.value - b.low)
    return Interval(*(math.exp(v) for v in (ratio, low, high)))
