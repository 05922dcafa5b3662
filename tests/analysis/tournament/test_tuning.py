"""The ladder stays within its budget and finds the best; known effects of parameters are found, in shares."""

import itertools
import math

import numpy as np
import pytest

from vitprof.analysis.tournament.tuning import (
    Candidate,
    Tried,
    first_rung,
    importances,
    rungs,
    survivors,
)


def test_a_ladder_by_hand() -> None:
    assert [(r.n, r.seconds) for r in rungs(9, 180.0)] == [(9, 10), (3, 30)]
    assert [(r.n, r.seconds) for r in rungs(9, 180.0, least_s=15.0)] == [(6, 15), (2, 45)]
    assert [(r.n, r.seconds) for r in rungs(1, 5.0)] == [(1, 5)]
    assert (rungs(0, 5.0), rungs(9, 5.0, least_s=6.0), rungs(9, -1.0)) == ([], [], [])
    assert (survivors([5.0, math.nan, 5.0, 1.0, 5.0, 2.0]), survivors([math.nan, math.nan])) == (
        [0, 2],
        [],
    )


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


def tried(candidate: Candidate, samples_per_s: float, rung: int = 1) -> Tried:
    return Tried(candidate, rung, 0, samples_per_s, "")


def grid(workers: float, batch: float, noise: float = 0.0) -> list[Tried]:
    """Two numbers of workers, two batch sizes, three prefetch factors; effects in logarithms from low to high."""
    rng = np.random.default_rng(0)
    return [
        tried(
            Candidate(w, p, b),
            1000 * math.exp(workers * (w == 4) + batch * (b == 512) + rng.normal(0, noise)),
        )
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
    made = grid(0.0, 0.1) + [
        tried(Candidate(0, None, b), 1000 * math.exp(-1 + 0.1 * (b == 512))) for b in (128, 512)
    ]
    assert list(importances(made).shares)[:2] == ["workers", "batch size"]
    assert importances(made).shares["prefetch factor"] == pytest.approx(0, abs=1e-9)
    made = grid(0.2, 0.1)
    misled = [tried(t.candidate, 1.0) for t in made[:3]]
    checks = [tried(t.candidate, 9e9, rung=0) for t in made[:2]]
    failed = [tried(Candidate(8, 2, 128), math.nan)]
    assert importances([*misled, *made, *checks, *failed]) == importances(made)


def test_too_few_trials_and_nothing_to_explain_are_said() -> None:
    few = importances(grid(0.2, 0.1)[:7])
    assert not few.shares
    assert (
        few.sentence
        == "Too few trials: 7 settings have a figure, at least 8 are needed. Give more time."
    )
    assert importances([]).sentence.startswith("Too few trials: 0 settings have")
    alike = importances(grid(0.0, 0.0))
    assert not alike.shares
    assert (
        alike.sentence == "No parameter matters: all 12 settings are within about 1% of each other."
    )
