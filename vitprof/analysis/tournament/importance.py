"""Which parameter of a search mattered: the share of the differences in throughput that each explains alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.tournament.halving import Candidate

PARAMETERS = {"workers": "workers", "prefetch_factor": "prefetch factor", "batch_size": "batch size"}
"""Fields of `Candidate` -> their names in words."""
FREE_SETTINGS = 3
"""Settings needed beyond those with which the model fits any throughputs exactly: without them its shares mean
nothing."""
ALIKE_FRAC = 0.01
"""Settings differ by chance if the standard deviation of their log throughputs is below this: there is nothing to
explain."""


class TriedSetting(Protocol):
    """A trial of a search, as far as its charts need it."""

    @property
    def candidate(self) -> Candidate:
        """Returns the setting."""

    @property
    def rung(self) -> int:
        """Returns the level of the search, from 1; 0 for a run that checks the winner."""

    @property
    def samples_per_s(self) -> float:
        """Returns the throughput; NaN without one."""


@dataclass(frozen=True)
class Importances:
    """The share of each parameter in the differences of throughput."""

    shares: Mapping[str, float]
    """Parameter in words -> its share of what they explain, the largest first; they add up to 1. Empty if not known."""
    explained: float
    """Share of the differences that all of them explain together, 0..1; NaN where not known."""
    n: int
    """Settings behind the figures."""
    sentence: str
    """What the shares are based on, or why there are none."""


def importances(trials: Sequence[TriedSetting]) -> Importances:
    """Returns how much of the differences in throughput each parameter explains.

    Fits a linear model of log(samples/s) with an effect for each value of each parameter, without interactions. A
    parameter's importance is how much less the model explains without it (sums of squares of type II: Yates, JASA
    1934). Each setting counts once, with its last run of the search, which is its longest.
    """
    known = {t.candidate: t.samples_per_s for t in trials if t.rung and t.samples_per_s > 0}
    settings, speeds = list(known), np.log(list(known.values()))
    effects = {words: made for name, words in PARAMETERS.items() if (made := _effects(settings, name)).shape[1]}
    needed = 1 + sum(made.shape[1] for made in effects.values()) + FREE_SETTINGS
    n = len(settings)
    if n < needed or not effects:
        few = f"{n} {'setting has' if n == 1 else 'settings have'} a figure"
        return Importances({}, math.nan, n, f"Too few trials: {few}, at least {needed} are needed. Give more time.")
    if float(np.std(speeds)) < ALIKE_FRAC:
        return Importances(
            {}, math.nan, n, f"No parameter matters: all {n} settings are within about 1% of each other."
        )
    left = _unexplained(speeds, list(effects.values()))
    own = {
        words: max(_unexplained(speeds, [made for other, made in effects.items() if other != words]) - left, 0.0)
        for words in effects
    }
    whole = math.fsum(own.values())
    shares = {words: value / whole if whole else 0.0 for words, value in sorted(own.items(), key=lambda it: -it[1])}
    explained = 1 - left / _unexplained(speeds, [])
    sentence = (
        f"Based on {n} settings, each with its longest run of the search: the parameters explain {explained:.0%} of "
        "their differences in throughput, and each bar is one parameter's share of that. Interactions are left out."
    )
    return Importances(shares, explained, n, sentence)


def _effects(settings: Sequence[Candidate], name: str) -> Floats:
    """Returns a column for each value but the first, 1 where a setting has it; (settings, values - 1).

    Without workers there is no prefetch: such a setting counts as one with the usual prefetch, so its gain or loss is
    put down to the workers.
    """
    values = [getattr(s, name) for s in settings]
    usual = next((v for v in values if v is not None), None)
    values = [usual if v is None else v for v in values]
    levels = list(dict.fromkeys(values))[1:]
    return np.array([[float(v == level) for level in levels] for v in values]).reshape(len(values), len(levels))


def _unexplained(speeds: Floats, effects: Sequence[Floats]) -> float:
    """Returns the sum of squares that a linear model of these columns leaves."""
    columns = np.hstack([np.ones((len(speeds), 1)), *effects])
    fitted = columns @ np.linalg.lstsq(columns, speeds, rcond=None)[0]
    return float(((speeds - fitted) ** 2).sum())
