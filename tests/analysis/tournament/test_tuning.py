"""The ladder stays within its budget and finds the best; known effects of parameters are found, in shares."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.analysis.tournament.tuning import Candidate, first_rung, importances, rungs, survivors


@pytest.mark.slow
@given(st.integers(0, 200), st.floats(0.01, 1e5), st.floats(0, 30))
def test_a_ladder_fits_its_budget(n: int, budget_s: float, least_s: float) -> None:
    ladder = rungs(n, budget_s, least_s=least_s)
    assert math.fsum(rung.n * rung.seconds for rung in ladder) <= budget_s * (1 + 1e-12)
    if not ladder:
        assert n == 0 or budget_s < least_s + 1e-3  # seconds are cut to milliseconds
        return
    assert ladder[0].n <= n
    assert all(rung.seconds >= least_s for rung in ladder)
    for before, after in itertools.pairwise(ladder):
        assert after.n == math.ceil(before.n / 3) < before.n
        assert after.seconds > before.seconds or before.seconds < 0.01  # seconds are cut to milliseconds
    assert len(survivors([1.0] * ladder[-1].n)) == 1  # the last rung leaves the winner


def test_a_ladder_by_hand() -> None:
    assert [(r.n, r.seconds) for r in rungs(9, 180.0)] == [(9, 10), (3, 30)]
    assert [(r.n, r.seconds) for r in rungs(9, 180.0, least_s=15.0)] == [(6, 15), (2, 45)]
    assert [(r.n, r.seconds) for r in rungs(1, 5.0)] == [(1, 5)]
    assert (rungs(0, 5.0), rungs(9, 5.0, least_s=6.0)) == ([], [])
    assert (survivors([5.0, math.nan, 5.0, 1.0, 5.0, 2.0]), survivors([math.nan, math.nan])) == ([0, 2], [])


@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan)), max_size=30))
def test_the_best_go_on(scores: list[float]) -> None:
    kept = survivors(scores)
    assert len(kept) == min(math.ceil(len(scores) / 3), sum(not math.isnan(s) for s in scores))
    out = [s for i, s in enumerate(scores) if i not in kept and not math.isnan(s)]
    assert all(scores[i] >= s for i in kept for s in out)
    assert [scores[i] for i in kept] == sorted((scores[i] for i in kept), reverse=True)


@pytest.mark.parametrize("budget_s", [0.0, math.nan, math.inf])
def test_what_makes_no_ladder(budget_s: float) -> None:
    with pytest.raises(ValueError, match="give a"):
        rungs(3, budget_s)


@pytest.mark.parametrize(
    ("n", "runs", "expected"),
    [
        (12, 24, 12),  # 12 + 4 + 2 and the baseline each time: 21
        (12, 21, 12),
        (12, 20, 11),
        (32, 1000, 32),
        (32, 0, 2),
        (1, 0, 1),
        (0, 10, 0),
    ],
)
def test_how_many_can_begin(n: int, runs: int, expected: int) -> None:
    assert first_rung(n, runs, rounds=3) == expected


@dataclass(frozen=True)
class Trial:
    candidate: Candidate
    samples_per_s: float
    rung: int = 1


def grid(workers: float, batch: float, noise: float = 0.0) -> list[Trial]:
    """Two numbers of workers, two batch sizes, three prefetch factors; effects in logarithms from low to high."""
    rng = np.random.default_rng(0)
    return [
        Trial(Candidate(w, p, b), 1000 * math.exp(workers * (w == 4) + batch * (b == 512) + rng.normal(0, noise)))
        for w, b, p in itertools.product((2, 4), (128, 512), (2, 4, 8))
    ]


def test_shares_are_those_of_the_effects() -> None:
    found = importances(grid(workers=0.2, batch=0.1))
    assert list(found.shares) == ["workers", "batch size", "prefetch factor"]
    assert list(found.shares.values()) == pytest.approx([0.8, 0.2, 0], abs=1e-9), "squares: 4 to 1"
    assert (found.n, found.explained) == (12, pytest.approx(1))
    assert found.sentence.startswith("Based on 12 settings")
    noisy = importances(grid(0.2, 0.1, noise=0.05))
    assert next(iter(noisy.shares)) == "workers"
    assert 0.5 < noisy.explained < 1
    assert math.fsum(noisy.shares.values()) == pytest.approx(1)
    made = grid(0.0, 0.1) + [Trial(Candidate(0, None, b), 1000 * math.exp(-1 + 0.1 * (b == 512))) for b in (128, 512)]
    assert list(importances(made).shares)[:2] == ["workers", "batch size"]
    assert importances(made).shares["prefetch factor"] == pytest.approx(0, abs=1e-9)
    made = grid(0.2, 0.1)
    misled = [Trial(t.candidate, 1.0) for t in made[:3]]
    checks = [Trial(t.candidate, 9e9, rung=0) for t in made[:2]]
    failed = [Trial(Candidate(8, 2, 128), math.nan)]
    assert importances([*misled, *made, *checks, *failed]) == importances(made)


def test_too_few_trials_and_nothing_to_explain_are_said() -> None:
    few = importances(grid(0.2, 0.1)[:7])
    assert not few.shares
    assert few.sentence == "Too few trials: 7 settings have a figure, at least 8 are needed. Give more time."
    assert importances([]).sentence.startswith("Too few trials: 0 settings have")
    alike = importances(grid(0.0, 0.0))
    assert not alike.shares
    assert alike.sentence == "No parameter matters: all 12 settings are within about 1% of each other."
