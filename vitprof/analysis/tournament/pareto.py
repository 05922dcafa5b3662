"""The Pareto front: settings that no other one beats in both throughput and cost."""

from __future__ import annotations

import math
from typing import Literal

from vitprof.analysis.tournament.rows import Leaderboard, LeaderboardRow

Cost = Literal["rss_bytes", "ram_bytes", "disk_bytes", "prepare_s"]


def cost(row: LeaderboardRow, against: Cost) -> float:
    """Returns the cost of a setting: bytes, or seconds for "prepare_s"; NaN where it is not known."""
    return row.rss_bytes if against == "rss_bytes" else float(getattr(row.entry, against))


def pareto(board: Leaderboard, against: Cost) -> tuple[str, ...]:
    """Returns the keys of the settings on the Pareto front, the cheapest first.

    No other setting has at least their throughput for at most their cost and is better in one of the two (Pareto,
    Manuale di economia politica, 1906, chapter 3). Only ranked settings whose cost is known are considered, by their
    estimates; intervals are ignored. Settings that are alike in both are on the front together.
    """
    known = [row for row in board.rows if row.rank is not None and math.isfinite(cost(row, against))]
    known.sort(key=lambda row: (cost(row, against), -row.samples_per_s, row.key))
    front: list[LeaderboardRow] = []
    for row in known:
        same = front and (cost(row, against), row.samples_per_s) == (cost(front[-1], against), front[-1].samples_per_s)
        if not front or same or row.samples_per_s > front[-1].samples_per_s:
            front.append(row)
    return tuple(row.key for row in front)
