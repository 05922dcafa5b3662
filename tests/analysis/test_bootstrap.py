"""Intervals of ratios; how often they hold the truth is tested with the throughput's, in test_summary."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitprof.analysis.bootstrap import ratio_interval, ratio_intervals


def test_parts_of_one_whole_are_drawn_together() -> None:
    rng = np.random.default_rng(0)
    whole = rng.exponential(1.0, 300)
    share = rng.random(300)
    part, rest = ratio_intervals(np.stack([share * whole, (1 - share) * whole]), whole)
    assert part.value + rest.value == pytest.approx(1)
    assert part.low + rest.high == pytest.approx(1)
    assert part.low < part.value < part.high
    assert ratio_interval(share * whole, whole) == pytest.approx(part)


def test_the_draws_are_those_of_whole_blocks() -> None:
    """Against the plain way: each resample as a list of blocks."""
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
    few = ratio_interval(np.ones(3), np.full(3, 2.0))
    assert few.value == 0.5
    assert math.isnan(few.low)
    lone = ratio_interval(np.eye(1, 30)[0], np.eye(1, 30)[0])  # many resamples hold no time at all
    assert lone.value == 1
    assert math.isnan(lone.high)
