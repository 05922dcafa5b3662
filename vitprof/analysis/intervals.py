"""How far a figure of a run may be from the truth: Student's t, and variances of series whose neighbours are alike."""

import math

from vitprof.analysis import arrays
from vitprof.analysis.arrays import Floats

NORMAL_975 = 1.959963985


def student_t(df: int) -> float:
    """Returns the 97.5% point of Student's t: exact for `df` 1 and 2, else Abramowitz and Stegun 26.7.5."""
    if df == 1:
        return math.tan(0.475 * math.pi)
    if df == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = NORMAL_975
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / float(df) ** power for power, term in enumerate(terms, start=1))


def variance_of_one(values: Floats, group: int) -> float:
    """Returns the variance of a value, estimated from means of `group` neighbours; larger if neighbours are alike."""
    means = values[: len(values) // group * group].reshape(-1, group).mean(axis=1)
    return float(means.var(ddof=1)) * group


def ratio_of_sums(part: Floats, whole: Floats) -> float:
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else math.nan


def widening(part: Floats, whole: Floats) -> float:
    """Returns the factor by which the block bootstrap's interval of sum(part) / sum(whole) is too narrow: as Student's
    t with few blocks, and to the largest variance of single blocks, pairs and fours.
    """
    blocks = min(arrays.BOOTSTRAP_BLOCKS, len(whole))
    if blocks < arrays.MIN_BLOCKS:
        return math.nan
    off = arrays.block_sums(
        part - ratio_of_sums(part, whole) * whole, blocks
    )  # the terms of the ratio's error
    one = variance_of_one(off, 1)
    alike = max(1.0, *(variance_of_one(off, group) / one for group in (2, 4))) if one > 0 else 1.0
    return student_t(blocks - 1) / NORMAL_975 * math.sqrt(blocks / (blocks - 1) * alike)
