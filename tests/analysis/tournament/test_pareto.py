"""The Pareto front, against its definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.tournament.tournament_entries import entry
from vitprof.analysis.tournament import Leaderboard, LeaderboardRow, cost, leaderboard, pareto

points = st.lists(
    st.tuples(st.integers(1, 6), st.one_of(st.integers(0, 6), st.just(math.nan))), min_size=1, max_size=12
)


def board_of(made: list[tuple[float, float]]) -> Leaderboard:
    entries = [entry(f"s{i:02}", 100.0 * speed, noise=0, runs=1, disk=disk) for i, (speed, disk) in enumerate(made)]
    return leaderboard(entries, baseline=entries[0].key, n_train=0)


def beats(a: LeaderboardRow, b: LeaderboardRow) -> bool:
    costs = cost(a, "disk_bytes"), cost(b, "disk_bytes")
    no_worse = a.samples_per_s >= b.samples_per_s and costs[0] <= costs[1]
    return no_worse and (a.samples_per_s > b.samples_per_s or costs[0] < costs[1])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(points)
def test_nothing_beats_the_front_and_something_beats_the_rest(made: list[tuple[float, float]]) -> None:
    board = board_of(made)
    front = pareto(board, "disk_bytes")
    assert len(set(front)) == len(front)
    known = [row for row in board.rows if not math.isnan(cost(row, "disk_bytes"))]
    for row in known:
        assert (row.key not in front) == any(beats(other, row) for other in known)
    assert set(front) <= {row.key for row in known}
    on = [row for key in front if (row := board.row(key)) is not None]
    assert [cost(row, "disk_bytes") for row in on] == sorted(cost(row, "disk_bytes") for row in on)


def test_what_is_not_ranked_is_not_on_it() -> None:
    made = [entry("base", 100, rss_peak_bytes=2.0), entry("failed", 900, status="failed", rss_peak_bytes=1.0)]
    board = leaderboard(made, baseline=made[0].key, n_train=0)
    assert pareto(board, "rss_bytes") == (made[0].key,)
    assert pareto(board, "prepare_s") == (made[0].key,)
