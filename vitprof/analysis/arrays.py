"""Types of arrays and columns; means that ignore unknown values; the type of an interval
(`analysis.intervals`)."""

import math
from collections.abc import Mapping
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
    """Returns a robust standard deviation: the median absolute deviation, scaled for normal noise.
    NaN if nothing is known.
    """
    return STD_OF_MAD * median(np.abs(values - median(values)))


BOOTSTRAP_BLOCKS = 20
MIN_BLOCKS = 4
"""Blocks, or steps, below which no interval is given: it would be narrower than the truth."""


class Interval(NamedTuple):
    """An estimate and its interval, 95% unless a function takes another level; NaN where a figure is not known."""

    value: float
    low: float
    high: float


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def block_sums(values: Floats, blocks: int) -> Floats:
    return np.asarray(
        np.add.reduceat(values, np.linspace(0, len(values), blocks + 1).astype(int)[:-1])
    )


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
