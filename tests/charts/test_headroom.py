"""The waterfall of headroom."""

from __future__ import annotations

import math

import pytest

from vitprof.analysis.verdict.headroom import Anchor, headroom
from vitprof.charts.breakdown import waterfall
from vitprof.charts.style import NEUTRAL


def made(role: str, ms: float, spread: float = 0.01) -> Anchor:
    s = ms / 1e3
    return Anchor(role, s, s * (1 - spread), s * (1 + spread), 2, 120)


FOUR = [made("A", 4), made("B", 4.01), made("C", 10), made("D", 16)]


def test_each_bar_stands_on_the_one_before() -> None:
    bar, words = waterfall(headroom(FOUR), 10).data
    assert list(bar.x) == ["data free (A)", "transfer", "preparation", "storage", "the job, cold (D)"]
    assert list(bar.base) == pytest.approx([0, 40, 40.1, 100, 0])
    assert list(bar.y) == pytest.approx([40, 0.1, 59.9, 60, 160])
    assert bar.base[3] + bar.y[3] == pytest.approx(bar.y[4])
    assert (bar.error_y.array[0], bar.error_y.arrayminus[4]) == (pytest.approx(0.4), pytest.approx(1.6))
    assert list(words.y) == pytest.approx([40.4, words.y[1], words.y[2], words.y[3], 161.6])
    assert "250 samples/s" in bar.hovertext[0]
    assert "60.0 ms a step" in bar.hovertext[3]


def test_what_cannot_be_told_from_nothing_is_grey_and_says_so() -> None:
    bar, words = waterfall(headroom(FOUR), 10).data
    assert [colour == NEUTRAL for colour in bar.marker.color] == [False, True, False, False, False]
    assert "not distinguishable" in words.text[1]


def test_missing_anchors() -> None:
    lost = Anchor("B", math.nan, math.nan, math.nan, 0, 0)
    bar, _ = waterfall(headroom([FOUR[0], lost, FOUR[2]]), 10).data
    assert list(bar.x) == ["data free (A)", "transfer and preparation", "the job (C)"]
    assert not waterfall(headroom([]), 10).data
    begun, _ = waterfall(headroom(FOUR[:2]), 10).data
    assert begun.x[-1] == "data in host memory (B)"
    alone, _ = waterfall(headroom([FOUR[0]]), 10).data
    assert list(alone.x) == ["data free (A)"]


def test_simulated_is_said() -> None:
    assert "simulated" in waterfall(headroom(FOUR, simulated=True), 10).layout.yaxis.title.text
