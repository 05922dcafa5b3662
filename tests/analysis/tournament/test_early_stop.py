"""Early stop: a slower trial is cut; one that may be as good is not, nor what other programs may
have slowed down."""

import math

import numpy as np
import pytest

from tests.analysis.tournament.test_blocks import rates_of, steps
from vitprof.analysis.tournament.early_stop import EARLIEST_STOP_FRAC, alone_at_most, cannot_win


def without_others(rates: np.ndarray, others: float) -> np.ndarray:
    return alone_at_most(rates, np.full(len(rates), others), np.zeros(len(rates), dtype=bool))


def test_a_slower_trial_is_cut_and_neighbours_that_are_alike_are_not() -> None:
    cut = 0
    for seed in range(100):
        walk = np.repeat(np.random.default_rng(seed).normal(0, 0.1, 10), 4)  # fours that are alike
        cut += cannot_win(1000 * np.exp(walk), 1050.0)
    assert cut <= 5
    rates = 900 * np.exp(np.random.default_rng(1).normal(0, 0.02, 40))
    for best_low, out in ((1000.0, True), (890.0, False)):
        looks = [
            cannot_win(rates[:n], 1.05 * best_low) for n in range(20, 41, 5)
        ]  # after each few blocks
        assert any(looks) == out
    assert not cannot_win(rates[:19], 1000.0)
    assert cannot_win(np.full(20, 950.0), 1000.0)
    assert not cannot_win(np.full(20, 955.0), 1000.0)  # near the best: worth its full time
    for best_low in (math.nan, 0.0, -1.0, math.inf):
        assert not cannot_win(np.full(40, 10.0), best_low), "without a best nothing is cut"
    assert not cannot_win(np.empty(0), 1000.0)


def cut_while_running(
    seed: int, *, alike: float = 0.0, noise: float = 0.1, drift: float = 0.0
) -> bool:
    """Whether a run as fast as the best's lower bound is cut at any look; its steps are blocked
    anew at each."""
    n, rng = 402, np.random.default_rng(seed)
    shocks = rng.normal(0, noise * math.sqrt(1 - alike**2), n)
    walk = [rng.normal(0, noise)]
    for shock in shocks[1:]:
        walk.append(alike * walk[-1] + shock)
    seconds = 1e-2 * np.exp(np.array(walk) + drift * np.linspace(1, -1, n))
    made, best = steps(seconds, np.full(n, 64.0)), 64 * (n - 2) / seconds[2:].sum()
    looks_at = range(int(EARLIEST_STOP_FRAC * n), n, 25)
    return any(cannot_win(rates_of({k: v[:m] for k, v in made.items()}), best) for m in looks_at)


@pytest.mark.parametrize("drift", [0.1, -0.1])
def test_a_trial_that_warms_up_is_not_cut(drift: float) -> None:
    assert sum(cut_while_running(seed, drift=drift) for seed in range(30)) <= 1
    assert sum(cut_while_running(seed, drift=drift, alike=0.9) for seed in range(30)) <= 1


def test_what_other_programs_may_have_made_is_no_evidence_and_cuts_no_trial() -> None:
    seen = np.full(20, 400.0)
    assert without_others(seen, 0.0) == pytest.approx(seen)
    # the machine and the job are read a moment apart
    assert without_others(seen, -0.01) == pytest.approx(seen)
    assert without_others(seen, 0.2) == pytest.approx(np.full(20, 500.0))
    for others, out in ((1.0, False), (1.7, False), (math.nan, False), (0.5, True), (0.65, False)):
        assert cannot_win(without_others(seen, others), 1000.0) == out
    # what was disturbed is no evidence, however slow; quiet blocks beside it are
    both = np.concatenate([seen, np.full(20, 50.0)])
    cores = np.repeat([0.0, 0.4], 20)
    kept = alone_at_most(both, cores, cores > 0.25)
    assert kept == pytest.approx(seen)
    assert cannot_win(kept, 1000.0)
    assert not cannot_win(alone_at_most(both, cores, np.ones(40, dtype=bool)), 1000.0)


def test_the_same_trials_would_be_cut_if_nobody_asked_who_else_ran() -> None:
    cut = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        taken = rng.beta(2, 2, 40) * rng.uniform(0, 1)
        rates = 1e3 * np.exp(-rng.normal(0, 0.01, 40)) * (1 - taken)
        assert not cannot_win(alone_at_most(rates, taken, taken >= 0.25), 1000.0)
        cut += cannot_win(rates, 1000.0)
    assert cut > 50
