"""Early stop: what is as good is almost never cut, however often one looks; what is clearly slower is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitprof.analysis.tournament import EARLIEST_STOP_FRAC, block_rates, cannot_win, without_others


def looks(rates: np.ndarray, best_low: float) -> bool:
    """As a runner asks: after each few blocks."""
    return any(cannot_win(rates[:n], best_low, margin=0) for n in range(20, len(rates) + 1, 5))


@pytest.mark.slow
def test_a_trial_that_is_as_good_is_not_cut_however_often_one_looks() -> None:
    cut = 0
    for seed in range(150):
        seconds = 1e-3 * np.exp(np.random.default_rng(seed).normal(0, 0.1, 400))
        cut += looks(1 / seconds, 1e3 / math.exp(0.005))  # the true mean of these seconds is e**0.005 ms
    assert cut <= 5  # 1% of 150 is 1.5; six or more have a chance below 0.5%


def test_alike_neighbours_are_not_more_than_they_say() -> None:
    cut = 0
    for seed in range(100):
        walk = np.repeat(np.random.default_rng(seed).normal(0, 0.1, 10), 4)  # fours that are alike
        cut += cannot_win(1000 * np.exp(walk), 1000.0, margin=0)
    assert cut <= 5


def test_a_slower_trial_is_cut() -> None:
    rates = 900 * np.exp(np.random.default_rng(1).normal(0, 0.02, 40))
    assert looks(rates, 1000.0)
    assert not looks(rates, 890.0)
    assert not cannot_win(rates[:19], 1000.0)
    assert not cannot_win(rates[:39], 1000.0, n_min=40)
    assert cannot_win(np.full(20, 950.0), 1000.0)
    assert not cannot_win(np.full(20, 955.0), 1000.0)  # near the best: worth its full time
    assert cannot_win(np.full(20, 955.0), 1000.0, margin=0.01)


@pytest.mark.parametrize("best_low", [math.nan, 0.0, -1.0, math.inf])
def test_without_a_best_nothing_is_cut(best_low: float) -> None:
    assert not cannot_win(np.full(40, 10.0), best_low)
    assert not cannot_win(np.empty(0), best_low)
    assert not cannot_win(np.full(4, 10.0), 1000.0, n_min=2)


def cut_while_running(seed: int, *, alike: float = 0.0, noise: float = 0.1, drift: float = 0.0) -> bool:
    """Whether a run as fast as the best's lower bound is cut at any look; its steps are blocked anew at each."""
    n, rng = 400, np.random.default_rng(seed)
    shocks = rng.normal(0, noise * math.sqrt(1 - alike**2), n)
    walk = [rng.normal(0, noise)]
    for shock in shocks[1:]:
        walk.append(alike * walk[-1] + shock)
    seconds = 1e-2 * np.exp(np.array(walk) + drift * np.linspace(1, -1, n))
    steps = {"step_s": seconds, "samples": np.full(n, 64.0), "epoch": np.zeros(n), "warmup": np.zeros(n)}
    steps |= {"data_wait_s": np.zeros(n), "queue_depth": np.full(n, math.nan)}
    best = 64 * n / seconds.sum()
    looks_at = range(int(EARLIEST_STOP_FRAC * n), n, 25)
    return any(cannot_win(block_rates({k: v[:m] for k, v in steps.items()}), best) for m in looks_at)


@pytest.mark.slow
@pytest.mark.parametrize("drift", [0.1, -0.1])
def test_a_trial_that_warms_up_is_not_cut(drift: float) -> None:
    assert sum(cut_while_running(seed, drift=drift) for seed in range(60)) <= 2
    assert sum(cut_while_running(seed, drift=drift, alike=0.9) for seed in range(60)) <= 2


def test_what_other_programs_may_have_made_is_no_evidence() -> None:
    seen = np.full(20, 400.0)
    assert without_others(seen, 0.0) == pytest.approx(seen)
    assert without_others(seen, -0.01) == pytest.approx(seen)  # the machine and the job are read a moment apart
    assert without_others(seen, 0.2) == pytest.approx(np.full(20, 500.0))
    for unknown in (1.0, 1.7, math.nan):
        assert not cannot_win(without_others(seen, unknown), 1000.0)
    assert cannot_win(without_others(seen, 0.5), 1000.0)
    assert not cannot_win(without_others(seen, 0.65), 1000.0)
    # a quiet run stays evidence beside one that was disturbed
    assert cannot_win(np.concatenate([seen, without_others(np.full(20, 50.0), 1.5)]), 1000.0)


def test_a_trial_that_stood_still_while_others_ran_is_never_cut() -> None:
    """As fast as the best, but of each block other programs took some share of the time, in which it did nothing."""
    cut = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        taken = rng.beta(2, 2, 40) * rng.uniform(0, 1)
        seconds = 1e-3 * np.exp(rng.normal(0, 0.01, 40)) / (1 - taken)
        blocks, others = 1 / seconds, float((taken * seconds).sum() / seconds.sum())
        assert not cannot_win(without_others(blocks, others), 1000.0)
        cut += cannot_win(blocks, 1000.0)
    assert cut > 50  # as it was while nobody asked who else ran
