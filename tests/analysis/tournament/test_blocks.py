"""Blocks of steady steps."""

from __future__ import annotations

import numpy as np
import pytest

from vitprof.analysis.tournament import block_rates
from vitprof.analysis.tournament.blocks import period


def steps(seconds: np.ndarray, samples: np.ndarray) -> dict[str, np.ndarray]:
    n = len(seconds)
    return {"step_s": seconds, "samples": samples, "epoch": np.zeros(n), "warmup": (np.arange(n) < 2).astype(float)}


def test_blocks_make_up_all_steady_steps() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.uniform(0.5, 1.5, 207)
    rates = block_rates(steps(seconds, np.full(207, 8.0)))
    assert len(rates) == 20
    assert rates[0] == pytest.approx(10.25 * 8 / (seconds[2:12].sum() + seconds[12] / 4))
    assert 1 / (1 / rates).mean() == pytest.approx(8 * 205 / seconds[2:].sum())


def test_their_mean_is_samples_over_time_with_few_steps_and_uneven_batches() -> None:
    seconds = np.full(29, 0.1)
    seconds[[6, 13, 28]] = 2.0  # stalls
    samples = np.full(29, 8.0)
    samples[[10, 28]] = 3.0  # the last batch of an epoch
    rates = block_rates(steps(seconds, samples))
    assert len(rates) == 20
    assert 1 / (1 / rates).mean() == pytest.approx(samples[2:].sum() / seconds[2:].sum())


def test_few_steps_and_steps_without_a_time() -> None:
    seconds = np.array([9.0, 9.0, 0.5, np.nan, 0.0, 0.25])
    assert block_rates(steps(seconds, np.ones(6))).tolist() == [2.0, 4.0]
    assert block_rates(steps(np.empty(0), np.empty(0))).tolist() == []
    assert block_rates(steps(np.ones(2), np.ones(2))).tolist() == []


@pytest.mark.parametrize("every", [8, 25, 40, 64, 90])
def test_a_loader_that_stalls_again_and_again_gains_nothing_by_it(every: int) -> None:
    """Blocks of a twentieth would leave a stall of every 40th batch out of half of them, and so out of the score."""
    rng = np.random.default_rng(every)
    for phase in range(0, every, 3):
        seconds = rng.lognormal(0, 0.1, 402) * np.where((np.arange(402) + phase) % every == 0, 20, 1)
        rates = block_rates(steps(seconds, np.full(402, 8.0)))
        assert len(rates) >= 4
        truly = 8 * 400 / seconds[2:].sum()
        assert np.percentile(rates, 80) <= 1.2 * truly
        assert 1 / (1 / rates).mean() == pytest.approx(truly)


def test_no_period_is_seen_in_chance() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert period(rng.lognormal(0, 0.3, 400)) == 1
        assert period(rng.lognormal(0, 0.1, 400) * np.where(rng.random(400) < 0.1, 5, 1)) == 1
    assert period(np.ones(400)) == 1
    assert period(np.linspace(1, 2, 400)) == 1
    assert period(np.ones(3)) == 1
