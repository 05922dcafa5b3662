"""Tuning one strategy by successive halving, and which parameter mattered. Jamieson and Talwalkar
(AISTATS 2016), figure 1: every rung gets the same share of the budget, and the best 1/eta of its
candidates go on; thirds are usual since Hyperband (Li et al., JMLR 2018, section 2).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats

HALVING_RATE = 3
PARAMETERS = {
    "workers": "workers",
    "prefetch_factor": "prefetch factor",
    "batch_size": "batch size",
}
FREE_SETTINGS = 3
"""Settings beyond those with which the model fits any throughputs exactly: without them its shares
mean nothing."""
ALIKE_FRAC = 0.01
"""Standard deviation of log throughputs below which settings differ by chance."""


@dataclass(frozen=True)
class Candidate:
    """A setting to try. None: the strategy's own value, or it has no such setting."""

    workers: int | None
    """Worker processes of the loader."""
    prefetch_factor: int | None
    """Batches that each worker keeps ready."""
    batch_size: int
    """Samples in a batch."""


@dataclass(frozen=True)
class Rung:
    """One level of the ladder."""

    n: int
    seconds: float
    """Seconds for each of them, start-up included."""


def rungs(candidates: int, budget_s: float, *, least_s: float = 0.0) -> list[Rung]:
    """Returns the ladder for so many candidates: sum of n * seconds <= budget_s. `least_s` is the
    shortest run that says anything. If not all fit, the first rung's `n` says how many; empty if
    none does.
    """
    for n in range(candidates, 0, -1):
        sizes = rung_sizes(n)
        seconds = [math.floor(budget_s / (len(sizes) * size) * 1e3) / 1e3 for size in sizes]
        if seconds[0] >= least_s and seconds[0] > 0:
            return [Rung(size, s) for size, s in zip(sizes, seconds, strict=True)]
    return []


def rung_sizes(n: int) -> list[int]:
    """Returns how many candidates each rung has: `n`, then a third of the rung before, while more
    than one is left."""
    sizes = [n]
    while (fewer := math.ceil(sizes[-1] / HALVING_RATE)) > 1:
        sizes.append(fewer)
    return sizes


def first_rung(n: int, runs: int, rounds: int) -> int:
    """Returns how many of `n` candidates, at least two, can start in the time of `runs` equal runs.
    In each rung every candidate left and a baseline run once; the last one is repeated up to
    `rounds` rounds.
    """
    for first in range(n, 2, -1):
        sizes = rung_sizes(first)
        sizes += sizes[-1:] * (rounds - len(sizes))
        if sum(sizes) + len(sizes) <= runs:
            return first
    return min(n, 2)


def survivors(scores: Sequence[float]) -> list[int]:
    """Returns the indices of the best third, rounded up, the best first; never NaN, a run that
    failed."""
    known = [i for i, score in enumerate(scores) if not math.isnan(score)]
    return sorted(known, key=lambda i: -scores[i])[: math.ceil(len(scores) / HALVING_RATE)]


@dataclass(frozen=True)
class Tried:
    """One run of the search."""

    candidate: Candidate
    rung: int
    """From 1; 0 for the runs that check the winner."""
    run_id: int
    samples_per_s: float
    """NaN where it failed, or had too few steps."""
    error: str


@dataclass(frozen=True)
class Importances:
    """The share of each parameter in the differences of throughput."""

    shares: Mapping[str, float]
    """Parameter in words -> its share of what they explain, the largest first; they add up to 1.
    Empty if not known."""
    explained: float
    """Share of the differences that all of them explain together, 0..1; NaN where not known."""
    n: int
    sentence: str
    """What the shares are based on, or why there are none."""


def importances(trials: Sequence[Tried]) -> Importances:
    """Returns how much of the differences in throughput each parameter explains: how much less a
    linear model of log(samples/s) explains without it (sums of squares of type II: Yates, JASA
    1934). Each setting counts once, with its last and longest run.
    """
    known = {t.candidate: t.samples_per_s for t in trials if t.rung and t.samples_per_s > 0}
    settings = list(known)
    speeds = np.log(list(known.values()))
    effects = {
        words: effect
        for name, words in PARAMETERS.items()
        if (effect := _effects(settings, name)).shape[1]
    }
    needed = 1 + sum(effect.shape[1] for effect in effects.values()) + FREE_SETTINGS
    n = len(settings)
    why_none = ""
    if n < needed or not effects:
        few = f"{n} {'setting has' if n == 1 else 'settings have'} a figure"
        why_none = f"Too few trials: {few}, at least {needed} are needed. Give more time."
    elif float(np.std(speeds)) < ALIKE_FRAC:
        why_none = f"No parameter matters: all {n} settings are within about 1% of each other."
    if why_none:
        return Importances({}, math.nan, n, why_none)
    left = _unexplained(speeds, list(effects.values()))
    own = {
        words: max(
            _unexplained(speeds, [effect for other, effect in effects.items() if other != words])
            - left,
            0.0,
        )
        for words in effects
    }
    whole = math.fsum(own.values())
    shares = {
        words: value / whole if whole else 0.0
        for words, value in sorted(own.items(), key=lambda it: -it[1])
    }
    explained = 1 - left / _unexplained(speeds, [])
    sentence = (
        f"Based on {n} settings, each with its longest run of the search: the parameters explain {explained:.0%} of "
        "their differences in throughput, and each bar is one parameter's share of that. Interactions are left out."
    )
    return Importances(shares, explained, n, sentence)


def _effects(settings: Sequence[Candidate], name: str) -> Floats:
    """Returns a column for each value but the first, 1 where a setting has it; (settings, values -
    1). Without workers the prefetch is the usual one, so its effect is put down to the workers.
    """
    values = [getattr(s, name) for s in settings]
    usual = next((v for v in values if v is not None), None)
    values = [usual if v is None else v for v in values]
    levels = list(dict.fromkeys(values))[1:]
    return np.array([[float(v == level) for level in levels] for v in values]).reshape(
        len(values), len(levels)
    )


def _unexplained(speeds: Floats, effects: Sequence[Floats]) -> float:
    columns = np.hstack([np.ones((len(speeds), 1)), *effects])
    return float(((speeds - columns @ np.linalg.lstsq(columns, speeds, rcond=None)[0]) ** 2).sum())
