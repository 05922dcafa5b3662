"""Types of arrays and columns, and means that ignore unknown values."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    """Returns a column, (n,); all NaN where an older run does not have it."""
    return series[name] if name in series else np.full(len(next(iter(series.values()))), np.nan)


def known(values: Floats) -> Floats:
    """Returns the finite values, in their order; the array itself if all are finite."""
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def mean(values: Floats) -> float:
    """Returns the mean of the finite values; NaN if there are none."""
    finite = known(values)
    return float(finite.mean()) if len(finite) else math.nan


def median(values: Floats) -> float:
    """Returns the median of the finite values; NaN if there are none."""
    finite = known(values)
    return float(np.median(finite)) if len(finite) else math.nan


def highest(values: Floats) -> float:
    """Returns the largest finite value; NaN if there is none."""
    finite = known(values)
    return float(finite.max()) if len(finite) else math.nan


STD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation (Iglewicz and Hoaglin 1993)."""


def spread(values: Floats) -> float:
    """Returns a robust standard deviation: the median absolute deviation, scaled for normal noise. NaN if nothing is
    known.
    """
    return STD_OF_MAD * median(np.abs(values - median(values)))
