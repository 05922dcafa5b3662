"""Types of arrays and columns; means that ignore unknown values; intervals of ratios, by a block bootstrap."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Measured values; NaN where one is not known."""
Ints = NDArray[np.int64]
"""Positions, numbers of steps, whole nanoseconds."""
Mask = NDArray[np.bool_]
"""One bool for each row of a series."""
Series = Mapping[str, Floats]
"""Columns by name, each (n,): the steps or the telemetry of a run. Read-only: callers share it."""


def column(series: Series, name: str) -> Floats:
    return series[name] if name in series else np.full(len(next(iter(series.values()))), np.nan)


def known(values: Floats) -> Floats:
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def mean(values: Floats) -> float:
    finite = known(values)
    return float(finite.mean()) if len(finite) else math.nan


def median(values: Floats) -> float:
    finite = known(values)
    return float(np.median(finite)) if len(finite) else math.nan


def highest(values: Floats) -> float:
    finite = known(values)
    return float(finite.max()) if len(finite) else math.nan


STD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation (Iglewicz and Hoaglin 1993)."""


def spread(values: Floats) -> float:
    """Returns the median absolute deviation, scaled to the standard deviation of normal noise; NaN if unknown."""
    return STD_OF_MAD * median(np.abs(values - median(values)))


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


def ratio_intervals(
    parts: Sequence[Floats], whole: Floats, apart: Mask | None = None
) -> list[Interval]:
    """Returns sum(part) / sum(whole) with its 95% interval for each of `parts`, (n,) by step: a bootstrap of up to 20
    blocks, because neighbours are not independent (Kuensch 1989), with the same draws for all. No interval with fewer
    than four steps. Those `apart` are drawn among themselves: each resample has as many of them.
    """
    sums = np.array([part.sum() for part in parts])
    whole_sum = float(whole.sum())
    if not whole_sum > 0:
        return [UNKNOWN] * len(parts)
    drawn = resampled([*parts, whole])
    if apart is not None and apart.any() and not apart.all():
        drawn = np.sum(
            [
                resampled([s[rows] for s in (*parts, whole)], i)
                for i, rows in enumerate((~apart, apart))
            ],
            0,
        )
    # with few blocks, or a resample without any time, there is no interval
    if len(whole) < MIN_BLOCKS or not (drawn[-1] > 0).all():
        return [Interval(float(s) / whole_sum, math.nan, math.nan) for s in sums]
    low, high = np.percentile(drawn[:-1] / drawn[-1], [2.5, 97.5], axis=1)
    return [
        Interval(*(float(v) for v in row)) for row in zip(sums / whole_sum, low, high, strict=True)
    ]


def resampled(series: Sequence[Floats], seed: int = 0) -> Floats:
    """Returns the sums of m series, (n,), over resamples of blocks, (m, resamples), the same draws for all; n > 0."""
    blocks = min(BOOTSTRAP_BLOCKS, len(series[0]))
    drawn = np.random.default_rng(seed).integers(blocks, size=(BOOTSTRAP_RESAMPLES, blocks))
    times_drawn = np.stack([(drawn == b).sum(axis=1) for b in range(blocks)]).astype(
        float
    )  # (blocks, resamples)
    return np.asarray(np.stack([block_sums(values, blocks) for values in series]) @ times_drawn)


def block_sums(values: Floats, blocks: int) -> Floats:
    return np.asarray(
        np.add.reduceat(values, np.linspace(0, len(values), blocks + 1).astype(int)[:-1])
    )


def ratio_interval(part: Floats, whole: Floats, apart: Mask | None = None) -> Interval:
    return ratio_intervals([part], whole, apart)[0]


def ratio_of(above: Interval, below: Interval) -> Interval:
    """Returns `above` / `below`, both above 0 and independent, with its interval, combined on logarithms by the method
    of Zou and Donner (Statistics in Medicine 2008), which allows for asymmetry.
    """
    a, b = (
        Interval(*(math.log(v) if v > 0 else math.nan for v in interval))
        for interval in (above, below)
    )
    ratio = a.value - b.value
    low = ratio - math.hypot(a.value - a.low, b.high - b.value)
    high = ratio + math.hypot(a.high - a.value, b.value - b.low)
    return Interval(*(math.exp(v) for v in (ratio, low, high)))
