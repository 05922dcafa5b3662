"""The charts of a search: what ran in its order, the best so far, and shares of each parameter."""

from __future__ import annotations

import math

import pytest

from tests.analysis.tournament.test_tuning import Trial, grid
from vitprof.analysis.tournament import Candidate, importances
from vitprof.charts.tournament.tuning import importance_bars, optimization_history


def test_the_history_holds_every_trial_with_a_figure_and_the_best_of_the_search() -> None:
    per_s = (500.0, math.nan, 700.0, 600.0, 900.0)
    trials = [Trial(Candidate(n, None, 64), v, rung=0 if n == 4 else 1) for n, v in enumerate(per_s)]
    figure = optimization_history(trials, [f"<b>{n}" for n in range(5)])
    search, check, best = figure.data
    assert (list(search.x), list(check.x)) == ([1, 3, 4], [5])
    assert list(best.y) == [500, 500, 700, 700, 700], "a check is no trial of the search"
    assert "&lt;b&gt;2" in search.hovertext[1]
    assert "5 trials" in figure.layout.meta["alt"]
    assert "the best reaches 700 samples/s" in figure.layout.meta["alt"]
    (line,) = optimization_history(trials[1:2], ["a"]).data
    assert list(line.y) == [None]


def test_importances_are_bars_of_shares() -> None:
    figure = importance_bars(importances(grid(0.2, 0.1)))
    (bar,) = figure.data
    assert list(bar.y) == ["workers", "batch size", "prefetch factor"]
    assert list(bar.x) == pytest.approx([0.8, 0.2, 0], abs=1e-9)
    assert list(bar.text) == ["80%", "20%", "0%"]
    assert "workers 80%" in figure.layout.meta["alt"]
