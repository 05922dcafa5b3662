"""Picks the setting that costs least among those that are equally fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitprof import formats
from vitprof.analysis.tournament.rows import LeaderboardRow

CLEARLY_MORE_FRAC = 0.10
"""A cost that is higher by a smaller share than this does not count: a setting's memory varies by some percent."""


@dataclass(frozen=True)
class Scale:
    """A cost that settings are compared by."""

    name: str
    value: Callable[[LeaderboardRow], float]
    grain: float
    """A smaller difference than this does not count either; in the unit of the cost."""
    words: Callable[[float], str]

    def of(self, row: LeaderboardRow) -> float:
        """Returns the setting's cost; infinite where it is not known."""
        value = self.value(row)
        return math.inf if math.isnan(value) else value


MIB = 2.0**20
SCALES: tuple[Scale, ...] = (
    Scale("memory", lambda row: row.rss_bytes, 64 * MIB, formats.size),
    Scale("RAM disk and kept samples", lambda row: row.entry.ram_bytes, 64 * MIB, formats.size),
    Scale("disk", lambda row: row.entry.disk_bytes, 64 * MIB, formats.size),
    Scale("preparation", lambda row: row.entry.prepare_s, 1.0, formats.seconds),
    Scale("workers", lambda row: float(row.entry.workers or 0), 0.0, "{:g}".format),
)
"""In the order in which they are compared."""


def cheapest(level: Sequence[LeaderboardRow], baseline: str) -> tuple[LeaderboardRow, list[str]]:
    """Returns which of the equally fast settings `level` to use, and the costs in which it clearly beats others, in
    words.

    Of settings that cost the same it is the one with the key `baseline`, else the best ranked.
    """
    left = list(level)
    lost: list[tuple[Scale, list[LeaderboardRow]]] = []
    for scale in SCALES:
        costs = {row.key: scale.of(row) for row in left}
        least = min(costs.values())
        if not math.isfinite(least):
            continue
        lost.append((scale, [row for row in left if _clearly_more(scale, costs[row.key], least)]))
        left = [row for row in left if not _clearly_more(scale, costs[row.key], least)]
    chosen = next((row for row in left if row.key == baseline), min(left, key=lambda row: row.rank or 0))
    reasons = []
    for scale, rows in lost:
        own = scale.of(chosen)
        if beaten := [scale.of(row) for row in rows if _clearly_more(scale, scale.of(row), own)]:
            dearest = max(beaten)
            against = f" against up to {scale.words(dearest)}" if math.isfinite(dearest) else ""
            reasons.append(f"{scale.name} ({scale.words(own)}{against})")
    return chosen, reasons


def _clearly_more(scale: Scale, cost: float, least: float) -> bool:
    return cost > max(least * (1 + CLEARLY_MORE_FRAC), least + scale.grain)
