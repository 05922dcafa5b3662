"""The one setting to use, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitprof import formats
from vitprof.analysis.tournament.entries import in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, Row

CLEARLY = 0.10
"""A cost that is higher by less than this share is no reason to choose: a setting's memory varies by some percent."""
MOST_NAMED = 3
"""Settings that a sentence can list."""


@dataclass(frozen=True)
class Scale:
    """A cost to choose by."""

    name: str
    value: Callable[[Row], float]
    grain: float
    """A difference below it is no reason to choose either."""
    words: Callable[[float], str]

    def of(self, row: Row) -> float:
        """The setting's cost; infinite where it is not known."""
        value = self.value(row)
        return math.inf if math.isnan(value) else value


MIB = 2.0**20
SCALES: tuple[Scale, ...] = (
    Scale("memory", lambda row: row.rss_bytes, 64 * MIB, formats.size),
    Scale("RAM disk and kept samples", lambda row: row.entry.ram_bytes, 64 * MIB, formats.size),
    Scale("disk", lambda row: row.entry.disk_bytes, 64 * MIB, formats.size),
    Scale("preparation", lambda row: row.entry.prepare_s, 1.0, formats.seconds),
    Scale("workers", lambda row: float(row.entry.workers or 0), 0.0, formats.number),
)
"""In the order in which they are asked."""


@dataclass(frozen=True)
class Recommendation:
    """One setting, with its reason."""

    key: str
    sentence: str
    """What to use, how much faster it is, and why it and none of those that tie with it."""
    ties: tuple[str, ...]
    """The other settings that cannot be told from the fastest one."""


def recommend(board: Leaderboard) -> Recommendation | None:
    """The fastest setting, or of those that tie with it the one that costs least; None while nothing is ranked.

    Costs in turn: memory of the processes, RAM disk and kept samples, disk, preparation, workers. Each sorts out what
    costs clearly more than the cheapest (`Scale`); a cost that is not known counts as high. What is left is decided by
    speed. A setting with its own batch size trains differently: the sentence says so.
    """
    best = board.row(board.best) if board.best is not None else None
    if best is None:
        return None
    level = [row for row in board.rows if row.rank is not None and (row is best or row.ties_with_best)]
    chosen, reasons = _cheapest(level)
    ties = tuple(row.key for row in level if row is not chosen)
    said = [_use(chosen, board.row(board.baseline), board.baseline), *_why(chosen, best, level, reasons)]
    base = board.row(board.baseline)
    if base is not None and chosen.entry.batch_size != base.entry.batch_size:
        said.append("Another batch size also changes how the model learns: check the learning rate and the accuracy")
    if any(row.n_runs < 2 for row in level):
        said.append("With one run of a setting it is not known how much its runs differ: repeat it to be sure")
    return Recommendation(chosen.key, " ".join(f"{sentence}." for sentence in said), ties)


def _cheapest(level: Sequence[Row]) -> tuple[Row, list[str]]:
    """Of settings that are equally fast, the one to take, and in which costs it beats others."""
    left, reasons = list(level), []
    for scale in SCALES:
        costs = {row.key: scale.of(row) for row in left}
        least = min(costs.values())
        if not math.isfinite(least):
            continue
        cheap = [row for row in left if costs[row.key] <= max(least * (1 + CLEARLY), least + scale.grain)]
        if len(cheap) < len(left):
            dearest = max(costs.values())
            against = f" against up to {scale.words(dearest)}" if math.isfinite(dearest) else ""
            reasons.append(f"{scale.name} ({scale.words(least)}{against})")
        left = cheap
    return min(left, key=lambda row: row.rank or 0), reasons


def _use(chosen: Row, base: Row | None, baseline: str) -> str:
    speed = formats.number(chosen.samples_per_s, "samples/s")
    if chosen.key == baseline:
        return f"Keep {in_words(chosen.entry)}, the baseline, at {speed}: nothing that was tried is faster beyond noise"
    use = f"Use {in_words(chosen.entry)}: {speed}"
    if base is None or not math.isfinite(chosen.speed_up):
        return f"{use}; the baseline gave no figures to compare with"
    runs = f"{chosen.n_runs} {'run' if chosen.n_runs == 1 else 'runs'}"
    low, high = (formats.number(v) for v in (chosen.speed_up_low, chosen.speed_up_high))
    of = f"{low} to {high}, {runs}" if math.isfinite(chosen.speed_up_low) else runs
    tie = ", a tie" if chosen.tie else ""
    return f"{use}, {formats.number(chosen.speed_up)} times that of {in_words(base.entry)} ({of}{tie})"


def _why(chosen: Row, best: Row, level: Sequence[Row], reasons: Sequence[str]) -> list[str]:
    others = [row for row in level if row is not chosen]
    if not others:
        return []
    names = [in_words(row.entry) for row in others[:MOST_NAMED]]
    if len(others) > MOST_NAMED:
        names.append(f"{len(others) - MOST_NAMED} more")
    tied = " and ".join(filter(None, ["; ".join(names[:-1]), names[-1]]))
    if reasons:
        return [f"Its speed cannot be told from that of {tied}; of these it needs least {', '.join(reasons)}"]
    which = "it is the fastest by a hair" if chosen is best else "it costs no more"
    return [f"Its speed cannot be told from that of {tied}; none costs clearly less, and {which}"]
