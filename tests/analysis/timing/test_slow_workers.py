"""One slow worker is named, and never the noise of equal ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.arrays import Floats
from vitprof.analysis.timing.slow_workers import FALSE_ALARMS, SlowWorker, slow_worker, slowest_of

Noise = Callable[[np.random.Generator, int, int], Floats]
"""Makes the logarithms of the times of (rounds, workers) batches without a difference."""
N_RUNS = 1000
RANDOM = {"watched": {"sampler": "RandomSampler"}}


def independent(sigma: float) -> Noise:
    return lambda random, n, workers: sigma * random.standard_normal((n, workers))


def alike(phi: float, sigma: float) -> Noise:
    """AR(1) of each worker."""

    def noise(random: np.random.Generator, n: int, workers: int) -> Floats:
        values = sigma * random.standard_normal((n, workers))
        for at in range(1, n):
            values[at] = phi * values[at - 1] + np.sqrt(1 - phi**2) * values[at]
        return values

    return noise


def with_slow_samples(share: float) -> Noise:
    """Batches that take twenty times as long, by chance."""

    def noise(random: np.random.Generator, n: int, workers: int) -> Floats:
        is_slow = random.random((n, workers)) < share
        return 0.1 * random.standard_normal((n, workers)) + 3.0 * is_slow

    return noise


def in_bursts(random: np.random.Generator, n: int, workers: int) -> Floats:
    """Other programs slow all workers down, for a while."""
    return alike(0.95, 0.7)(random, n, 1) + independent(0.1)(random, n, workers)


@pytest.mark.parametrize(("n_rounds", "workers"), [(20, 2), (60, 4)])
@pytest.mark.parametrize(
    "noise",
    [
        independent(0.2),
        independent(1.0),
        alike(0.5, 0.3),
        alike(0.8, 0.3),
        alike(0.95, 0.3),
        with_slow_samples(0.05),
        with_slow_samples(0.2),
        in_bursts,
    ],
)
def test_equal_workers_are_named_in_fewer_than_1_of_100_runs(
    noise: Noise, n_rounds: int, workers: int
) -> None:
    random = np.random.default_rng([n_rounds, workers])
    named = sum(slowest_of(noise(random, n_rounds, workers)) is not None for _ in range(N_RUNS))
    assert named <= FALSE_ALARMS * N_RUNS


@pytest.mark.parametrize("noise", [independent(0.2), alike(0.5, 0.3), with_slow_samples(0.05)])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_worker_twice_as_slow_is_named(noise: Noise, workers: int) -> None:
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(20):
        rounds = noise(random, 200, workers)
        rounds[:, 1] += np.log(2.1)
        found = slowest_of(rounds)
        assert found is not None
        worker, ratio = found
        assert worker == 1
        inside += ratio.low < 2.1 < ratio.high
    assert inside >= 19


def steps(each_s: Floats, epoch_steps: int = 10_000) -> dict[str, Floats]:
    """Returns steps with batches of 16 samples, of which each takes so long: (rounds, workers) seconds."""
    n_workers = each_s.shape[1]
    made_s = 16 * each_s.ravel()
    n = len(made_s)
    at = np.arange(n)
    end_s = 100 + np.cumsum(made_s)
    return made_steps(
        np.full(n, 0.01),
        np.full(n, 0.01),
        warmup=2,
        samples=16,
        epochs=at // epoch_steps,
        worker=(at % epoch_steps % n_workers).astype(float),
        made_start_s=end_s - made_s,
        made_end_s=end_s,
    )


def found(each_s: Floats, facts: Any = RANDOM, **kwargs: Any) -> SlowWorker | None:
    of = steps(each_s, **kwargs)
    return slow_worker(of, of["warmup"] == 0, facts)


def uneven(ratio: float = 2.1, n_rounds: int = 80, workers: int = 4) -> Floats:
    """Returns the times of samples of which worker 2's take longer."""
    random = np.random.default_rng(3)
    each_s = 0.004 * np.exp(0.1 * random.standard_normal((n_rounds, workers)))
    each_s[:, 2] *= ratio
    return each_s


def of_samples(*medians_s: float) -> dict[str, Any]:
    workers = [
        {"worker": number, "timed": 100, "median_s": median_s}
        for number, median_s in enumerate(medians_s)
    ]
    return {**RANDOM, "slow_samples": {"workers": workers}}


def test_it_says_which_and_by_how_much() -> None:
    worker = found(uneven())
    assert worker is not None
    assert worker.sentence == (
        "The samples of worker 2 take 2.1 times as long as those of the other 3 (2 to 2.2). It gets its samples by "
        "chance, so it is the worker: look for a program that shares its core, or for what worker_init_fn does."
    )
    excess_s = worker.excess_s(steps(uneven()))
    assert excess_s[2::4].sum() == pytest.approx(16 * (uneven() - uneven(1.0)).sum(), rel=0.05)
    assert not excess_s[0::4].any()


@pytest.mark.parametrize("sampler", ["SequentialSampler", "Mine", None])
def test_where_the_order_is_not_random_it_may_be_its_samples(sampler: str | None) -> None:
    worker = found(uneven(), {"watched": {"sampler": sampler}})
    assert worker is not None
    assert "Whether it is the worker or its samples is not known" in worker.sentence


def test_a_worker_that_was_given_the_slow_samples_is_not_slow() -> None:
    assert found(uneven(), of_samples(0.004, 0.004, 0.0045, 0.004)) is None
    worker = found(uneven(), of_samples(0.004, 0.004, 0.0084, 0.004))
    assert worker is not None
    assert (worker.sample_s, worker.others_sample_s) == (0.0084, pytest.approx(0.004))


def test_one_that_is_slow_for_a_while_is_not_slow() -> None:
    each_s = uneven(1.0)
    each_s[60:, 2] *= 8
    assert found(each_s) is None


def test_two_slow_ones_are_not_one() -> None:
    each_s = uneven()
    each_s[:, 1] *= 2.1
    assert found(each_s) is None


@pytest.mark.parametrize("each_s", [uneven(1.2), uneven(n_rounds=9), uneven(n_rounds=400)[:, 2:3]])
def test_a_little_too_few_or_alone(each_s: Floats) -> None:
    assert found(each_s) is None


def test_workers_are_compared_within_epochs() -> None:
    """An epoch of 42 batches gives two workers one more than the others."""
    worker = found(uneven(n_rounds=84), epoch_steps=42)
    assert worker is None, "the numbers of the workers change here, and no number is slow"
    each_s = uneven(1.0, n_rounds=84)
    in_epoch = np.arange(each_s.size) % 42
    each_s.reshape(-1)[in_epoch % 4 == 2] *= 2.1
    worker = found(each_s, epoch_steps=42)
    assert worker is not None
    assert worker.worker == 2
