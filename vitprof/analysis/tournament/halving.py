"""Successive halving: many settings for a short time each, then the best of them for longer.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization" (AISTATS 2016), figure
1: every rung gets the same share of the budget, and the best 1/eta of its candidates go on. Theirs halves; thirds are
usual since Hyperband (Li et al., JMLR 2018, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HALVING_RATE = 3


@dataclass(frozen=True)
class Candidate:
    """A setting to try. None: the strategy's own value, or it has no such setting."""

    workers: int | None
    prefetch_factor: int | None
    batch_size: int


@dataclass(frozen=True)
class Rung:
    """One level of the ladder."""

    n: int
    """Candidates that run in it."""
    seconds: float
    """Seconds for each of them, start-up included."""


def rungs(
    candidates: Sequence[object] | int, budget_s: float, eta: int = HALVING_RATE, *, least_s: float = 0.0
) -> list[Rung]:
    """Returns the ladder for these candidates (or this many) within `budget_s` seconds: sum of n * seconds <= budget_s.

    `least_s` is the shortest run that says anything. If the budget is too small for a rung with all candidates, the
    ladder has fewer: the first rung's `n` says how many, and the caller takes the first ones of its list. Empty if not
    even one candidate fits. Raises ValueError for eta < 2, or a budget that is not a finite number above 0.
    """
    if eta < 2:
        raise ValueError(f"eta is {eta}: give a whole number of at least 2")
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s is {budget_s}: give a finite number of seconds above 0")
    for n in range(candidates if isinstance(candidates, int) else len(candidates), 0, -1):
        sizes = rung_sizes(n, eta)
        seconds = [math.floor(budget_s / (len(sizes) * size) * 1e3) / 1e3 for size in sizes]
        if seconds[0] >= least_s and seconds[0] > 0:
            return [Rung(size, s) for size, s in zip(sizes, seconds, strict=True)]
    return []


def rung_sizes(n: int, eta: int = HALVING_RATE) -> list[int]:
    """Returns how many candidates each rung has: `n`, then 1/eta of the rung before, while more than one is left."""
    sizes = [n]
    while (fewer := math.ceil(sizes[-1] / eta)) > 1:
        sizes.append(fewer)
    return sizes


def first_rung(n: int, runs: int, rounds: int, eta: int = HALVING_RATE) -> int:
    """Returns how many of `n` candidates can start if all runs are equally long and the time is enough for `runs` of
    them.

    In each rung every candidate that is left runs once, and so does a baseline; the last rung is repeated until there
    have been `rounds` rounds. At least two candidates, if there are that many.
    """
    for first in range(n, 2, -1):
        sizes = rung_sizes(first, eta)
        sizes += sizes[-1:] * (rounds - len(sizes))
        if sum(sizes) + len(sizes) <= runs:
            return first
    return min(n, 2)


def survivors(scores: Sequence[float], eta: int = HALVING_RATE) -> list[int]:
    """Returns the indices of those that go on, the best first: those with the ceil(n / eta) highest scores.

    NaN is a run that failed and never goes on, so there may be fewer, or none. Of equal scores the earlier goes on.
    """
    known = [i for i, score in enumerate(scores) if not math.isnan(score)]
    return sorted(known, key=lambda i: -scores[i])[: math.ceil(len(scores) / eta)]
