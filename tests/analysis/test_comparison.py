"""Runs side by side: ratios, their range, ties, and what is not known."""

from __future__ import annotations

import math

import pytest

from vitprof.analysis.comparison import against_slowest
from vitprof.records import RunSummary


def summary(speed: float, half: float) -> RunSummary:
    return RunSummary(samples_per_s=speed, samples_per_s_low=speed - half, samples_per_s_high=speed + half)


def test_ratios_are_to_the_slowest_in_the_order_given() -> None:
    fast, slow = against_slowest([summary(300, 10), summary(100, 5)])
    assert fast.speed_up == pytest.approx(3)
    assert (fast.low, fast.high) == (pytest.approx(290 / 105), pytest.approx(310 / 95))
    assert slow.speed_up == 1
    assert not fast.tie
    assert not slow.tie


def test_overlapping_intervals_are_a_tie() -> None:
    faster, slowest = against_slowest([summary(104, 5), summary(100, 5)])
    assert faster.tie
    assert not slowest.tie


def test_unknown_speeds_and_intervals() -> None:
    unknown, known, without = against_slowest([None, summary(50, 1), RunSummary(samples_per_s=100.0)])
    assert math.isnan(unknown.speed_up)
    assert known.speed_up == 1
    assert without.speed_up == 2
    assert math.isnan(without.low)
    assert not without.tie
    assert [math.isnan(c.speed_up) for c in against_slowest([None, RunSummary()])] == [True, True]
