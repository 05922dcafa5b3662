"""How far a figure of a run may be from the truth: 95% intervals of ratios of sums over steps, for
all figures alike.

Steps are not independent: a prefetch queue runs full and empty, caches warm up, other programs come
and go. Neighbours are then alike, and n steps say as little as a few independent ones would. A
bootstrap of 20 blocks does not know that: of 100 of its "95%" intervals 43 to 93 held the truth
(docs/self-test.md has what these hold).

The error of sum(part) / sum(whole) is that of the sum of its linearised residuals, part - ratio *
whole (the delta method; Cochran, Sampling Techniques, section 2.11). What the variance of that sum
is:

1. How alike neighbours are is the largest of three estimates of their autocorrelation
   (`_autocorrelation`), corrected for its bias (Kendall; Marriott and Pope, Biometrika 1954), and
   not at its estimate but at its upper bound of 90%: few steps that look independent may not be so,
   and intervals that believe them are the ones that miss the truth.
2. The residuals are freed of it (prewhitening; Andrews and Monahan, Econometrica 1992), and what is
   left is measured by its slowest waves only: 0.4 n^(2/3) cosines (Lazarus, Lewis, Stock and Watson,
   Journal of Business & Economic Statistics 2018). A stall every 8th step is a fast wave: it evens
   out, and widens no interval.
3. Both are estimates, so Student's t takes the place of the normal distribution, with the degrees
   of freedom of both together, and of strata together (Satterthwaite, Biometrics Bulletin 1946).

Where the steps count for fewer than `LEAST_INDEPENDENT` independent ones there is no interval, and
more steps are needed, unless they differ so little that it does not matter.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitprof.analysis import arrays, students_t
from vitprof.analysis.arrays import BOOTSTRAP_BLOCKS, MIN_BLOCKS, UNKNOWN, Floats, Interval, Mask

NORMAL_975 = 1.959963985
TOO_ALIKE = "slow and fast ones come in runs too long to tell what is usual"
"""Why steps enough in number have no interval."""
TWO_SIDED_95 = students_t.TWO_SIDED_95
MOST_SUMS = 1000
"""Longer series are summed over neighbours first: a million steps have no more to say about slow
waves."""
LEAST_WAVES = 4
WAVES_SCALE = 0.4
"""Cosines for n values: this times n^(2/3), the choice of Lazarus, Lewis, Stock and Watson
(2018)."""
UPPER_90 = 1.2816
"""Standard errors of the autocorrelation that are added to it: its one-sided bound of 90%."""
MOST_ALIKE = 0.999
FEW_MOST_ALIKE = 0.95
"""The same for the few blocks of a run (`alike`): there is no telling 0.95 from 0.99."""
LEAST_INDEPENDENT = 2.0
"""Independent steps that the steps must count for, at the upper bound of their autocorrelation. Of
series of 20 independent steps 95% pass, of those with AR(1) 0.8 a third, and from 160 steps on
all."""
ALIKE_COST = 3.0
"""What the estimate of the autocorrelation costs of 1 / degrees of freedom, in 1 / independent
steps. In the first order it is 2: var(S) / S^2 = 4 (1 + r) / ((1 - r) n). Simulated, 2 is too few
for 40 steps (92 of 100 with AR(1) 0.8)."""
KNOWN_START_SPREAD = 0.5
KNOWN_START_DF = 4
"""Standard deviation of the start that is taken to be known (`noise_of_sum`), as a share of what
starts take longer, and the degrees of freedom that it counts for. Simulated with 1 to 10 starts
that are log-normal with sigma 0.4, 93 to 99% of the intervals hold the truth, where Student's t
alone has 91 to 94% and, for a single start, none."""
ROUNDING = 1e-9
"""Share of the sum up to which all residuals together are rounding, as where all steps are
alike."""
NARROW = 0.2
"""How far an end may be, as an exponent, for an interval of too few independent steps: 20% of the
figure."""
MOST_BEYOND = 0.5
"""Points between the ends of a share's interval above which it says little: one beyond what was seen
takes its place, or is not given where it is as wide."""
ENOUGH_SEEN = 30
"""Steps from which that is so. Of 20 steps with AR(1) 0.8 it would hold the truth in 91 of 100, where the
wide interval does in 93."""
FARTHEST = 50.0
"""Exponent at which an end of an interval is as good as infinite."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of the sum of a series; each field has the shape of the series without its last
    axis."""

    variance: Floats
    """Of the sum; NaN where it cannot be told."""
    df: Floats
    """Degrees of freedom of that estimate."""
    few: Mask
    """Whether the values say as little as fewer than `LEAST_INDEPENDENT` independent ones. The
    variance is then a bound: as if the whole series were a single value of a distribution as wide
    as what was seen."""

    def reach(self, quantile: float = TWO_SIDED_95) -> Floats:
        """Returns how far the sum may be from its expectation; NaN where that cannot be told."""
        return np.asarray(students_t.quantiles(quantile, self.df) * np.sqrt(self.variance))


def ratio_interval(part: Floats, whole: Floats, apart: Mask | None = None) -> Interval:
    """Returns sum(part) / sum(whole) with its 95% interval: samples/s, seconds a sample. Both are
    (n,) by step. Steps `apart` are another stratum (`noise_of_sum`).
    """
    ends = ratio_ends(part, whole, apart)
    return _interval(float(part.sum()), float(whole.sum()), *ends)


def share_intervals(
    parts: Sequence[Floats], whole: Floats, apart: Mask | None = None
) -> list[Interval]:
    """Returns the same for each of `parts`, none of which is more than `whole`: ends are from 0 to
    1."""
    if not len(parts):
        return []
    ends = share_ends(np.asarray(parts), whole, apart)
    total = float(whole.sum())
    return [
        _interval(float(part.sum()), total, low, high)
        for part, low, high in zip(parts, *ends, strict=True)
    ]


def share_interval(part: Floats, whole: Floats, apart: Mask | None = None) -> Interval:
    return share_intervals([part], whole, apart)[0]


def interval_of_runs(runs: Sequence[tuple[Floats, Floats]]) -> Interval:
    """Returns sum(part) / sum(whole) over (part, whole) of several runs, with the interval of the
    noise within them.

    Runs are independent of each other. So several, of which each says as little as a single value,
    are as many as `LEAST_INDEPENDENT` asks for.
    """
    part = np.concatenate([part for part, _ in runs])
    whole = np.concatenate([whole for _, whole in runs])
    total = float(whole.sum())
    if len(runs) == 1 or not total > 0:
        return ratio_interval(part, whole)
    ratio = float(part.sum()) / total
    off = [part - ratio * whole for part, whole in runs]
    noise = functools.reduce(_noise_of_sum, map(_noise_of_neighbours, off))
    low, high = _stretched(np.asarray(ratio), noise.reach() / total, np.concatenate(off))
    return _interval(float(part.sum()), total, low, high)


def interval_of_blocks(values: Floats, quantile: float) -> Interval:
    """Returns the mean of `values`, (n,), with the interval that ends at that quantile of Student's
    t: of up to 20 means of neighbours, with the largest variance of single blocks, pairs and fours.
    For a sure yes or no (99.9%), where the few degrees of freedom of `noise_of_sum` would need
    hundreds of steps.
    """
    n = min(BOOTSTRAP_BLOCKS, len(values))
    mean = arrays.mean(values)
    if n < MIN_BLOCKS:
        return Interval(mean, -math.inf, math.inf)
    blocks = np.array([block.mean() for block in np.array_split(values, n)])
    variance = max(variance_of_one(blocks, group) for group in (1, 2, 4) if n >= 2 * group)
    reach = students_t.quantile(quantile, n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - reach, mean + reach)


def interval_of_pairs(part: Floats, whole: Floats) -> Interval:
    """Returns sum(part) / sum(whole) of pairs, (n,), that are independent of each other, as blocks
    of steps far from each other are: Student's t with n - 1 degrees of freedom.
    """
    total = float(whole.sum())
    if len(part) < MIN_BLOCKS or not total > 0:
        return _interval(float(part.sum()), total, math.nan, math.nan)
    ratio = float(part.sum()) / total
    off = part - ratio * whole
    reach = np.asarray(
        students_t.quantile(TWO_SIDED_95, len(off) - 1)
        * math.sqrt(len(off) * float(off.var(ddof=1)))
    )
    low, high = _stretched(np.asarray(ratio), reach / total, off)
    return _interval(float(part.sum()), total, low, high)


def ratio_ends(part: Floats, whole: Floats, apart: Mask | None = None) -> tuple[Floats, Floats]:
    """Returns both ends of the 95% interval of sum(part) / sum(whole) over the last axis, for many
    series at once; NaN where it cannot be told.
    """
    ratio, noise, off = _ratio_noise(part, whole, apart)
    ends = _stretched(ratio, noise.reach(), off, noise.few)
    return _with_or_without(ends, off, part, whole, apart)


def share_ends(part: Floats, whole: Floats, apart: Mask | None = None) -> tuple[Floats, Floats]:
    """Returns the same for shares. The interval is made on the logarithm of the odds (logit): few
    long waits make a share uneven, and one that was found too small has a variance that was found
    too small with it.
    """
    share, noise, off = _ratio_noise(part, whole, apart)
    inside = (share > 0) & (share < 1)
    of_whole = np.where(inside, share, 0.5)
    exponent = noise.reach() / (of_whole * (1 - of_whole))
    stretch = np.exp(_reach(exponent, noise.few))
    odds = of_whole / (1 - of_whole)
    low = odds / stretch
    high = odds * stretch
    # none of the time or all of it, in each step
    edge = np.where(stretch == 1, np.clip(share, 0.0, 1.0), np.nan)
    low = np.where(inside, low / (1 + low), edge)
    high = np.where(inside, high / (1 + high), edge)
    seen_low, seen_high = _beyond_what_was_seen(part, whole)
    says_little = np.isnan(stretch)
    if part.shape[-1] >= ENOUGH_SEEN:
        says_little |= high - low > MOST_BEYOND
    low = np.where(says_little, np.fmax(low, seen_low), low)
    high = np.where(says_little, np.fmin(high, seen_high), high)
    return _with_or_without((low, high), off, part, whole, apart)


def _beyond_what_was_seen(part: Floats, whole: Floats) -> tuple[Floats, Floats]:
    """Returns the ends of the steps' own shares, each farther by as much again as they lie apart; NaN
    where that says little.

    It stands in for an interval that the steps are too alike for, or that is wider than `MOST_BEYOND`:
    30 steps that idle for 85 to 97% of their time each leave no doubt about a limit of 20%, however
    alike neighbours are. Simulated with AR(1) 0.8, it holds the truth more often than 95%
    (docs/self-test.md).
    """
    own = part / np.where(whole > 0, whole, np.nan)
    if own.shape[-1] < MIN_BLOCKS:
        unknown = np.full(own.shape[:-1], np.nan)
        return unknown, unknown
    lowest = own.min(axis=-1)
    highest = own.max(axis=-1)
    apart_by = highest - lowest
    low = np.clip(lowest - apart_by, 0.0, 1.0)
    high = np.clip(highest + apart_by, 0.0, 1.0)
    says_little = ~(high - low <= MOST_BEYOND)
    return np.where(says_little, np.nan, low), np.where(says_little, np.nan, high)


def _with_or_without(
    ends: tuple[Floats, Floats], off: Floats, part: Floats, whole: Floats, apart: Mask | None
) -> tuple[Floats, Floats]:
    """Returns the ends so that the figure without any single step, epoch starts excepted, is within
    them: what was seen once may be chance. A single wait of 20 s in 700 steps is a share of 72%,
    and 3% without it.
    """
    if not off.shape[-1]:
        return ends
    size = np.abs(off) if apart is None or apart.all() else np.where(apart, -1.0, np.abs(off))
    largest = size.argmax(axis=-1)[..., None]

    def without(values: Floats) -> Floats:
        values = np.broadcast_to(values, off.shape)
        one = np.take_along_axis(values, largest, axis=-1)[..., 0]
        return np.asarray(values.sum(axis=-1) - one)

    rest = without(whole)
    some = rest > 0
    figure = np.where(some, without(part) / np.where(some, rest, 1.0), np.nan)
    return np.minimum(ends[0], figure), np.maximum(ends[1], figure)


def _stretched(
    ratio: Floats, reach: Floats, off: Floats, few: Mask | bool = False
) -> tuple[Floats, Floats]:
    """Returns both ends around a ratio; the end on the side of the residuals' long tail is farther
    (as exp(x) is beyond 1 + x), since a long step that was not seen is on that side. Both stay
    above 0 for a ratio above 0.
    """
    above = ratio > 0
    relative = _reach(reach / np.where(above, ratio, 1.0), few)
    tail_above = (off**3).sum(axis=-1) > 0
    far = np.exp(relative)
    near = 1 + relative
    low = ratio / np.where(tail_above, near, far)
    high = ratio * np.where(tail_above, far, near)
    return np.where(above, low, ratio - reach), np.where(above, high, ratio + reach)


def _reach(relative: Floats, few: Mask | bool) -> Floats:
    """Returns how far an end may be, as an exponent; NaN with too few independent steps, unless
    even the bound for these is narrow.
    """
    return np.where(few & (relative > NARROW), np.nan, np.minimum(relative, FARTHEST))


def _ratio_noise(part: Floats, whole: Floats, apart: Mask | None) -> tuple[Floats, Noise, Floats]:
    """Returns the ratio, its noise, and the residuals, (..., n)."""
    total = np.asarray(whole.sum(axis=-1))
    total = np.where(total > 0, total, np.nan)
    ratio = np.asarray(part.sum(axis=-1) / total)
    off = part - ratio[..., None] * whole
    rounding = np.abs(off).sum(axis=-1) <= ROUNDING * np.abs(part).sum(axis=-1)
    off = np.where(rounding[..., None], 0.0, off)
    noise = noise_of_sum(off, apart)
    return ratio, replace(noise, variance=noise.variance / total**2), off


def _interval(part: float, total: float, low: float | Floats, high: float | Floats) -> Interval:
    if not total > 0:
        return UNKNOWN
    value = part / total
    if not (math.isfinite(low) and math.isfinite(high)):
        return Interval(value, math.nan, math.nan)
    return Interval(value, min(float(low), value), max(float(high), value))  # beyond rounding


def noise_of_sum(values: Floats, apart: Mask | None = None) -> Noise:
    """Returns the noise of the sum of `values` over their last axis, (..., n). Those `apart`, (n,),
    are a stratum of their own: epoch starts, of which a run has a number that is no chance.

    Starts are far from each other, so independent. A single one has no variance of its own, and a
    few say too little. So one more start is taken to be known, which differs from their mean by
    half of what they take longer than other steps: with a single start of which nothing else is
    known the interval contains those that take about twice as long, and half. A variance of 0,
    which a single start had before, is the one that cannot be true.
    """
    if apart is None or not apart.any() or apart.all():
        return _noise_of_neighbours(values)
    inside = values[..., ~apart]
    starts = values[..., apart]
    between = _noise_of_neighbours(inside)
    n = starts.shape[-1]
    excess = starts.mean(axis=-1) - inside.mean(axis=-1)
    squares = ((starts - starts.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    of_one = (squares + (KNOWN_START_SPREAD * excess) ** 2) / n
    df = np.full_like(of_one, n - 1 + KNOWN_START_DF)
    of_starts = Noise(n * of_one, df, np.zeros_like(of_one, dtype=bool))
    return _noise_of_sum(between, of_starts)


def _noise_of_sum(one: Noise, other: Noise) -> Noise:
    """Returns the noise of the sum of two independent sums, with Satterthwaite's degrees of
    freedom."""
    variance = one.variance + other.variance
    spread = one.variance**2 / one.df + other.variance**2 / other.df
    estimated = spread > 0
    df = np.where(estimated, variance**2 / np.where(estimated, spread, 1.0), np.inf)
    return Noise(variance, df, one.few | other.few)


def _noise_of_neighbours(values: Floats) -> Noise:
    if values.shape[-1] > MOST_SUMS:
        edges = np.linspace(0, values.shape[-1], MOST_SUMS + 1).astype(int)[:-1]
        values = np.add.reduceat(values, edges, axis=-1)
    n = values.shape[-1]
    if n < MIN_BLOCKS:
        unknown = np.full(values.shape[:-1], np.nan)
        return Noise(unknown, unknown, np.ones(unknown.shape, dtype=bool))
    values = values - values.mean(axis=-1, keepdims=True)
    alike = _upper_autocorrelation(values)
    whitened = values[..., 1:] - alike[..., None] * values[..., :-1]
    waves = min(max(LEAST_WAVES, round(WAVES_SCALE * n ** (2 / 3))), (n - 1) // 2)
    variance = n * _slow_variance(whitened, waves) / (1 - alike) ** 2
    independent = n * (1 - alike) / (1 + alike)
    df = 1 / (1 / waves + ALIKE_COST / independent)
    few = independent < LEAST_INDEPENDENT
    of_one = n**2 * values.var(axis=-1)
    return Noise(np.where(few, of_one, variance), np.where(few, 1.0, df), few)


def _slow_variance(values: Floats, waves: int) -> Floats:
    """Returns the variance that a value has in the slowest `waves` cosines of a series."""
    n = values.shape[-1]
    at = (np.arange(n) + 0.5) / n
    cosines = math.sqrt(2 / n) * np.cos(np.pi * np.outer(at, np.arange(1, waves + 1)))
    return np.asarray(((values @ cosines) ** 2).mean(axis=-1))


def _upper_autocorrelation(values: Floats) -> Floats:
    n = values.shape[-1]
    unbiased = _without_bias(_autocorrelation(values), n)
    error = np.sqrt(np.clip(1 - unbiased**2, 0.0, 1.0) / n)
    return np.asarray(np.clip(unbiased + UPPER_90 * error, 0.0, MOST_ALIKE))


def _without_bias(autocorrelation: Floats, n: int) -> Floats:
    """Returns what n values show of their autocorrelation, without its bias (Kendall; Marriott and
    Pope)."""
    return autocorrelation + (1 + 3 * np.clip(autocorrelation, 0.0, 1.0)) / n


def alike(values: Floats) -> float:
    """Returns how alike neighbours of `values`, (n,), are: the autocorrelation at lag 1 without its
    bias, from 0 (independent) to `FEW_MOST_ALIKE`."""
    found = _without_bias(_first_lag(values), len(values))
    return float(np.clip(found, 0.0, FEW_MOST_ALIKE))


def _autocorrelation(values: Floats) -> Floats:
    """Returns how alike neighbours are, the largest of three estimates: of the values; of their
    ranks, since a single long step hides the others; and of sums of pairs, since noise of single
    steps hides what lasts.
    """
    n = values.shape[-1]
    pairs = values[..., : n // 2 * 2].reshape(*values.shape[:-1], -1, 2).sum(axis=-1)
    of_pairs = _first_lag(pairs)
    # pairs of an AR(1) with r have r (1 + r) / 2
    of_one = (np.sqrt(np.clip(1 + 8 * of_pairs, 0.0, 9.0)) - 1) / 2
    estimates = [_first_lag(values), _first_lag(_ranks(values)), of_one]
    return np.asarray(np.maximum.reduce(estimates))


def _first_lag(values: Floats) -> Floats:
    """Returns the autocorrelation at lag 1; 0 for a constant series."""
    off = values - values.mean(axis=-1, keepdims=True)
    square = (off**2).sum(axis=-1)
    varies = square > 0
    together = (off[..., 1:] * off[..., :-1]).sum(axis=-1)
    return np.asarray(np.where(varies, together / np.where(varies, square, 1.0), 0.0))


def _ranks(values: Floats) -> Floats:
    """Returns ranks along the last axis; equal values share their mean rank, or else zeros would
    seem to rise."""
    n = values.shape[-1]
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    at = np.broadcast_to(np.arange(n), ordered.shape)
    new = np.ones(ordered.shape, dtype=bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    last = np.ones(ordered.shape, dtype=bool)
    last[..., :-1] = new[..., 1:]
    first_of_equal = np.maximum.accumulate(np.where(new, at, 0), axis=-1)
    backwards = np.where(last, at, n)[..., ::-1]
    last_of_equal = np.minimum.accumulate(backwards, axis=-1)[..., ::-1]
    ranks = np.empty(ordered.shape)
    np.put_along_axis(ranks, order, (first_of_equal + last_of_equal) / 2, axis=-1)
    return ranks


def variance_of_one(values: Floats, group: int) -> float:
    """Returns the variance of a value, estimated from means of `group` neighbours; larger if
    neighbours are alike."""
    means = values[: len(values) // group * group].reshape(-1, group).mean(axis=1)
    return float(means.var(ddof=1)) * group


def ratio_of_sums(part: Floats, whole: Floats) -> float:
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else math.nan
