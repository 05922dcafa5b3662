"""Student's t at any level and for any number of degrees of freedom, also a fraction of one."""

import math
from functools import cache, lru_cache

import numpy as np

from vitprof.analysis.arrays import Floats

TWO_SIDED_95 = 0.975
"""Quantile at the upper end of a 95% interval."""
TERMS = 200
"""Terms of the continued fraction at most: it has settled after 20 for the arguments that occur."""
SETTLED = 1e-12
LEAST = 1e-300
"""In place of 0 in a denominator (Lentz's method)."""
HALVINGS = 45
"""Halvings of a bracket: 13 digits."""


def below(t: float, df: float) -> float:
    """Returns the probability that a value of Student's t with `df` degrees of freedom is below
    `t`."""
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    tail = _incomplete_beta(df / (df + t * t), df / 2, 0.5) / 2
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=4096)
def quantile(p: float, df: float) -> float:
    """Returns the value of Student's t with `df` degrees of freedom that is undercut with
    probability `p`."""
    if p < 0.5:
        return -quantile(1 - p, df)
    high = 1.0
    while below(high, df) < p:
        high *= 2
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if below(middle, df) < p:
            low = middle
        else:
            high = middle
    return high


def quantiles(p: float, df: Floats) -> Floats:
    """Returns the same for each of `df`, at least 0.5, to 4 digits and for `p` above 0.5; NaN for
    NaN. It is read from a table: of thousands of series at once, `quantile` would take seconds."""
    inverse, logs = _table(p)
    return np.asarray(np.exp(np.interp(1 / df, inverse, logs)))


@cache
def _table(p: float) -> tuple[Floats, Floats]:
    """Returns 1 / df, rising, and the logarithm of the quantile there, by the trapezoidal rule over
    t = sinh(y)."""
    inverse = np.concatenate([[1e-6], np.linspace(0.0, 2.0, 401)[1:]])
    y = np.linspace(0.0, 40.0, 8001)
    squares = np.sinh(y) ** 2
    logs = []
    for df in 1 / inverse:
        density = np.cosh(y) * np.exp(-(df + 1) / 2 * np.log1p(squares / df))
        shares = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        logs.append(math.log(math.sinh(np.interp(p - 0.5, shares / shares[-1] / 2, y))))
    return inverse, np.asarray(logs)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Returns the regularised incomplete beta function, by its continued fraction (Abramowitz and
    Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there the fraction settles slowly, and its mirror image fast
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    c = 1.0
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for numerator in (even, odd):
            d = 1 / _not_zero(1 + numerator * d)
            c = _not_zero(1 + numerator / c)
            value *= c * d
        if abs(value - before) < SETTLED * abs(value):
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > LEAST else LEAST
