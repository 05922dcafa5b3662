"""Intervals of a setting's throughput, and of the ratio of two settings that ran in the same rounds.

Two sources of noise: within a run, from block to block, and between runs of one setting, because another moment of the
machine is another speed. The first is found by a bootstrap of blocks. The second cannot be: a bootstrap over two or
three rounds covers far less than it says (Hesterberg, The American Statistician 2015, section 4.1). It is Student's t
over the rounds, whose variance leans on that of the other settings, Smyth's moderated t (Statistical Applications in
Genetics and Molecular Biology 2004, section 3). The wider of the two is given, and none where the second is not known:
after one round of all settings. All of it on logarithms: noise of a machine is a share of the time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.bootstrap import BOOTSTRAP_RESAMPLES, MIN_BLOCKS, UNKNOWN, Interval
from vitprof.analysis.tournament.entries import OUT_OF_THE_RACE, Entry

PRIOR_DF = 4
"""How many rounds' worth the other settings' spread counts at most: settings differ in how noisy they are."""


@dataclass(frozen=True)
class Measured:
    """One run, on logarithms."""

    value: float
    """log of samples/s."""
    draws: Floats
    """The same for each resample of its blocks, (1000,); NaN with fewer than four blocks."""


Rounds = Mapping[int, Measured]
"""Round -> the setting's run in it."""


@dataclass(frozen=True)
class Spread:
    """Variance between rounds, and how many degrees of freedom it rests on."""

    variance: float
    df: int


def harmonic(blocks: Floats) -> float:
    """Returns the throughput of blocks with equally many samples: the time of all of them counts, not the mean of their
    rates.
    """
    return float(1 / (1 / blocks).mean())


def usable(blocks: Floats) -> Floats:
    """Returns the blocks that have a rate."""
    return np.asarray(blocks[np.isfinite(blocks) & (blocks > 0)], dtype=np.float64)


def measured(entry: Entry, seed: int) -> dict[int, Measured]:
    """Returns the runs of a setting that gave figures, by round; of two of the same round the later one.

    The draws depend on seed, key and round only, so that the order of the settings changes nothing.
    """
    runs = {}
    for outcome in entry.outcomes:
        blocks = usable(outcome.blocks_per_s)
        if outcome.status in OUT_OF_THE_RACE or not len(blocks):
            continue
        draws = np.full(BOOTSTRAP_RESAMPLES, math.nan)
        if len(blocks) >= MIN_BLOCKS:
            rng = np.random.default_rng([seed, zlib.crc32(entry.key.encode()), outcome.round])
            draws = -np.log((1 / blocks)[rng.integers(len(blocks), size=(BOOTSTRAP_RESAMPLES, len(blocks)))].mean(1))
        runs[outcome.round] = Measured(math.log(harmonic(blocks)), draws)
    return runs


def throughput(runs: Rounds, others: Sequence[Spread] = ()) -> Interval:
    """samples/s: the geometric mean over rounds, with its 95% interval. `others` are spreads of the other settings."""
    return _interval(list(runs.values()), others)


def within_low(runs: Rounds) -> float:
    """samples/s: the lower end of what blocks alone allow, without the noise between runs. NaN with too few blocks."""
    if not runs:
        return math.nan
    return math.exp(float(np.percentile(np.mean([m.draws for m in runs.values()], axis=0), 2.5)))


def ratio(runs: Rounds, base: Rounds, others: Sequence[Spread] = ()) -> Interval:
    """Returns the throughput over that of `base`, paired by round; where they share no round, of the two by themselves.

    The interval of two that share none: both half-widths as in Zou and Donner (Statistics in Medicine 2008).
    """
    if pairs := _pairs(runs, base):
        return _interval(pairs, others)
    if not runs or not base:
        return UNKNOWN
    a, b = (Interval(*(math.log(v) for v in throughput(side))) for side in (runs, base))
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return Interval(*(math.exp(v) for v in (value, low, high)))


def spread(runs: Rounds, base: Rounds | None = None) -> Spread:
    """Returns how much a setting's rounds differ, or their ratios to `base`; no degree of freedom with fewer
    than two.
    """
    return _spread(list(runs.values()) if base is None else _pairs(runs, base))


def _pairs(runs: Rounds, base: Rounds) -> list[Measured]:
    shared = sorted(set(runs) & set(base))
    return [Measured(runs[r].value - base[r].value, runs[r].draws - base[r].draws) for r in shared]


def _spread(rounds: Sequence[Measured]) -> Spread:
    if len(rounds) < 2:
        return Spread(math.nan, 0)
    return Spread(float(np.var([m.value for m in rounds], ddof=1)), len(rounds) - 1)


def _interval(rounds: Sequence[Measured], others: Sequence[Spread]) -> Interval:
    if not rounds:
        return UNKNOWN
    value = math.fsum(m.value for m in rounds) / len(rounds)
    within = np.percentile(np.mean([m.draws for m in rounds], axis=0), [2.5, 97.5]) - value
    between = _half_width(_moderated(_spread(rounds), others), len(rounds))
    if math.isnan(between):  # blocks alone cover a true value in 3 to 6 of 10 cases only
        return Interval(math.exp(value), math.nan, math.nan)
    low, high = float(np.fmin(within[0], -between)), float(np.fmax(within[1], between))  # fmin: of two, what is known
    low, high = min(low, 0.0), max(high, 0.0)  # without noise all is rounding
    return Interval(math.exp(value), math.exp(value + low), math.exp(value + high))


def _half_width(known: Spread, n: int) -> float:
    return student_t(known.df) * math.sqrt(known.variance / n) if known.df else math.nan


def _moderated(own: Spread, others: Sequence[Spread]) -> Spread:
    """`own`, leaning on the median of the others: weighted by degrees of freedom, which add up (Smyth 2004, eq. 3).

    But never less than `own`: settings do not share one variance, and a noisy one among quiet ones has to look noisy.
    """
    known = [s for s in others if s.df]
    if not known:
        return own
    prior_df = min(PRIOR_DF, sum(s.df for s in known))
    # A variance estimated from few rounds has a median below its mean: Wilson and Hilferty (PNAS 1931).
    prior = float(np.median([s.variance / (1 - 2 / (9 * s.df)) ** 3 for s in known]))
    df = own.df + prior_df
    mixed = (own.df * own.variance if own.df else 0.0) / df + prior_df * prior / df
    return Spread(max(mixed, own.variance) if own.df else mixed, df)


def student_t(df: int) -> float:
    """Returns the 97.5% point of Student's t: exact for 1 and 2, else Abramowitz and Stegun 26.7.5 (error below
    0.6%).
    """
    if df == 1:
        return math.tan(0.475 * math.pi)
    if df == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = 1.959963985
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + math.fsum(term / float(df) ** power for power, term in enumerate(terms, start=1))
