"""Means that pass over what is not known, and the one place where array types are defined."""

import math

import numpy as np
import pytest

from vitprof.analysis.arrays import highest, known, mean, median, ratio_interval, ratio_intervals


def test_what_is_not_known_is_passed_over_and_nothing_known_is_nan() -> None:
    values = np.array([3.0, np.nan, 1.0, np.inf, 8.0, -np.inf])
    assert known(values).tolist() == [3.0, 1.0, 8.0]
    assert (mean(values), median(values), highest(values)) == (4.0, 3.0, 8.0)
    for nothing in (np.empty(0), np.full(3, np.nan)):
        assert not len(known(nothing))
        assert all(math.isnan(of(nothing)) for of in (mean, median, highest))


def test_parts_of_one_whole_are_drawn_together_in_whole_blocks() -> None:
    rng = np.random.default_rng(0)
    whole = rng.exponential(1.0, 300)
    share = rng.random(300)
    part, rest = ratio_intervals(np.stack([share * whole, (1 - share) * whole]), whole)
    assert part.value + rest.value == pytest.approx(1)
    assert part.low + rest.high == pytest.approx(1)
    assert part.low < part.value < part.high
    assert ratio_interval(share * whole, whole) == pytest.approx(part)
    # against the plain way: each resample as a list of blocks
    rng = np.random.default_rng(1)
    part, whole = rng.random(57), rng.random(57) + 0.5
    edges = np.linspace(0, 57, 21).astype(int)
    blocks = [slice(a, b) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    ratios = [
        sum(part[blocks[b]].sum() for b in drawn) / sum(whole[blocks[b]].sum() for b in drawn)
        for drawn in np.random.default_rng(0).integers(20, size=(1000, 20)).tolist()
    ]
    found = ratio_interval(part, whole)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(ratios, [2.5, 97.5])))


def test_without_enough_time_or_steps_there_is_no_interval_or_not_even_a_value() -> None:
    assert all(math.isnan(v) for v in ratio_interval(np.zeros(9), np.zeros(9)))
    for n in (1, 3):
        few = ratio_interval(np.ones(n), np.full(n, 2.0))
        assert (few.value, math.isnan(few.low), math.isnan(few.high)) == (0.5, True, True)
    lone = ratio_interval(np.eye(1, 30)[0], np.eye(1, 30)[0])  # many resamples hold no time at all
    assert (lone.value, math.isnan(lone.high)) == (1, True)


def noisy(n: int, seed: int, *, spread: float = 0.3, memory: float = 0.0) -> np.ndarray:
    """Step times around 1 s; with `memory` slow steps come in clusters."""
    noise = np.random.default_rng(seed).standard_normal(n + 100)
    for i in range(1, n + 100):
        noise[i] += memory * noise[i - 1]
    return np.exp(spread * noise[100:] * math.sqrt(1 - memory**2))


@pytest.mark.parametrize("n", [4, 21, 399])
def test_the_interval_holds_the_estimate_and_closes_around_constant_steps(n: int) -> None:
    samples, seconds = np.full(n, 10.0), noisy(n, seed=n)
    assert ratio_interval(samples, np.full(n, 0.5)) == pytest.approx((20, 20, 20))
    found = ratio_interval(samples, seconds)
    assert found.low < samples.sum() / seconds.sum() < found.high
    assert ratio_interval(samples, seconds) == found, (
        "the same figures each time they are asked for"
    )
    assert ratio_interval(samples * seconds, seconds) == pytest.approx((10, 10, 10)), (
        "ragged batches, constant rate"
    )


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_the_interval_holds_the_truth_about_as_often_as_it_says_also_where_slow_steps_cluster(
    memory: float,
) -> None:
    """Drawn step by step instead of in blocks, the interval would hold it in 4 of 10 with memory 0.9."""
    truth = 1 / math.exp(0.3**2 / 2)  # the mean of a log-normal step time
    hits = 0
    for seed in range(60):
        _, low, high = ratio_interval(np.ones(1000), noisy(1000, seed, memory=memory))
        hits += low <= truth <= high
    assert 0.8 * 60 <= hits < 60  # always would mean that it is too wide
