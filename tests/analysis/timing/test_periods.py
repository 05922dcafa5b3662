"""What is slow at every k-th position is told from what is slow by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.timing.periods import CHANCE, SlowBatches, period_of, slow_batches

N_RUNS = 2000


@pytest.mark.parametrize(("every", "first"), [(100, 0), (100, 37), (8, 5), (3, 1), (777, 12)])
def test_every_kth_is_found(every: int, first: int) -> None:
    period = period_of(np.arange(first, 10_000, every), 1 / every, 1 / every)
    assert period is not None
    assert (period.every, period.first) == (every, first)
    assert period.examples.startswith(f"{first}, {first + every}, ")


def test_a_part_of_the_set_and_some_others_are_enough() -> None:
    random = np.random.default_rng(1)
    seen = np.sort(random.choice(100_000, 20_000, replace=False))
    slow = seen[seen % 1000 == 7]
    others = random.choice(seen, 2)
    share = (len(slow) + 2) / len(seen)
    period = period_of(np.concatenate([slow, others]), share, share)
    assert period is not None
    assert (period.every, period.first, period.n) == (1000, 7, len(slow))


@pytest.mark.parametrize("n", [6, 20, 100, 500])
@pytest.mark.parametrize("size", [2000, 50_000])
def test_slow_ones_by_chance_have_no_period(n: int, size: int) -> None:
    random = np.random.default_rng(n)
    named = 0
    runs = N_RUNS if n < 100 and size < 10_000 else 100
    for _ in range(runs):
        named += period_of(random.choice(size, n, replace=False), n / size, n / size) is not None
    assert named <= CHANCE * N_RUNS


@pytest.mark.parametrize(
    "positions",
    [
        np.arange(3000, 3500),  # one folder of the set
        np.arange(0, 5000, 100)[:5],
        np.concatenate([np.arange(0, 5000, 100), np.arange(1, 5000, 100)]),
        np.arange(0, 500, 100),
    ],
)
def test_what_is_no_period(positions: np.ndarray) -> None:
    share = len(positions) / 5000
    assert period_of(positions, share, share) is None


def test_the_share_may_be_known_badly() -> None:
    """A worker names eight slow samples of a batch only, and some that are nearly slow are counted, too."""
    random = np.random.default_rng(3)
    named = random.choice(np.arange(5, 5000, 8), 300, replace=False)
    period = period_of(named, 300 / 5000, 900 / 5000)
    assert period is not None
    assert (period.every, period.first) == (8, 5)


def test_only_some_of_every_kth_are_no_period() -> None:
    random = np.random.default_rng(2)
    every = np.arange(0, 5000, 100)
    assert period_of(random.choice(every, 20, replace=False), 20 / 5000, 20 / 5000) is None


def steps(slow: Any, workers: int, n: int = 400, epoch_steps: int = 400) -> dict[str, Any]:
    """Returns the steps of a run in which batches are slow to make: those of `slow`, (n,) bool."""
    random = np.random.default_rng(4)
    made_s = 0.02 * np.exp(0.1 * random.standard_normal(n))
    made_s[slow] += 0.1
    at = np.arange(n)
    end_s = 100 + np.cumsum(made_s)
    worker = (at % epoch_steps % workers).astype(float) if workers else np.nan
    made = {"made_start_s": end_s - made_s, "made_end_s": end_s, "worker": worker}
    wait_s = np.full(n, 0.01)
    return made_steps(wait_s, wait_s, warmup=2, samples=16, epochs=at // epoch_steps, **made)


def found(slow: Any, workers: int = 4, **kwargs: Any) -> SlowBatches | None:
    of = steps(slow, workers, **kwargs)
    return slow_batches(of, of["warmup"] == 0)


AT = np.arange(400)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_every_8th_batch_of_an_epoch(workers: int) -> None:
    batches = found(AT % 8 == 3, workers)
    assert batches is not None
    assert (batches.period.every, batches.period.first) == (8, 3)
    assert batches.sentence.startswith(
        "Every 8th batch of an epoch (number 3, 11, 19 and so on) takes 12"
    )
    assert batches.excess_s[AT % 8 == 3][5:].mean() == pytest.approx(0.1, rel=0.1)
    assert not batches.excess_s[AT % 8 != 3].any()


def test_every_10th_batch_of_each_worker() -> None:
    batches = found(AT // 4 % 10 == 6)
    assert batches is not None
    assert "Every 10th batch of each worker (number 6, 16, 26 and so on)" in batches.sentence


def test_what_goes_on_across_epochs() -> None:
    batches = found(AT % 30 == 11, epoch_steps=80)
    assert batches is not None
    assert "Every 30th batch of the run (number 11, 41, 71 and so on)" in batches.sentence


@pytest.mark.parametrize("is_slow", [AT % 4 == 2, AT % 2 == 1])
def test_all_batches_of_some_workers_are_no_period(is_slow: Any) -> None:
    assert found(is_slow) is None


def test_the_first_batches_of_epochs_are_no_period() -> None:
    assert found(AT % 40 < 4, epoch_steps=40) is None


def test_batches_that_are_slow_by_chance_have_no_period() -> None:
    random = np.random.default_rng(5)
    named = 0
    for _ in range(300):
        share = random.choice([0.02, 0.1, 0.3])
        named += found(random.random(400) < share) is not None
    assert named <= 1
    bursts = np.repeat(random.random(40) < 0.2, 10)
    assert found(bursts) is None
