"""The one setting to use, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitprof import formats
from vitprof.analysis.tournament.entries import setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow

CLEARLY_MORE_FRAC = 0.10
"""A cost that is higher by less than this share is no reason to choose: a setting's memory varies by some percent."""
FULL_SHUFFLE = "full"
ORDER_WORDS = {"none": "does not shuffle", "block": "shuffles blocks of neighbours only"}
"""Of an epoch's samples, by `RunConfig.shuffle`, in words."""
MOST_NAMED = 3
"""Settings that a sentence can list."""


@dataclass(frozen=True)
class Scale:
    """A cost to choose by."""

    name: str
    value: Callable[[LeaderboardRow], float]
    grain: float
    """A difference below it is no reason to choose either."""
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
"""In the order in which they are asked."""


@dataclass(frozen=True)
class Recommendation:
    """One setting, with its reason."""

    key: str | None
    """None where too few steps were measured to recommend anything."""
    sentence: str
    """What to use, how much faster it is, and why it and none of those that tie with it."""
    ties: tuple[str, ...]
    """The other settings that cannot be told from the fastest one."""


def recommend(board: Leaderboard) -> Recommendation | None:
    """Returns the fastest setting, or of those that tie with it the one that costs least; None while nothing is ranked.

    Where the fastest has too few steps to be compared, what to do about it instead (`Recommendation.key` is None).
    Only settings with the baseline's page cache count: cold files are another experiment. The baseline is kept where it
    ties, costs no more and nothing is faster than it beyond noise. Of ties, those that shuffle all samples go first.

    Costs in turn: memory of the processes, RAM disk and kept samples, disk, preparation, workers. Each sorts out what
    costs clearly more than the cheapest (`Scale`); a cost that is not known counts as high. What is left is decided by
    speed. A setting with its own batch size trains differently: the sentence says so.
    """
    best = board.row(board.best) if board.best is not None else None
    if best is None:
        return None
    if best.too_few is not None:
        return Recommendation(None, _too_few(best), ())
    cache = best.entry.page_cache
    ranked = [row for row in board.rows if row.rank is not None and row.entry.page_cache == cache]
    level = [row for row in ranked if row is best or row.ties_with_best]
    faster = [row for row in ranked if row.speed_up_low > 1 and not row.tie and row.key != board.baseline]
    fit = [row for row in level if not faster or row.key != board.baseline] or faster
    orderly = [row for row in fit if row.entry.shuffle == FULL_SHUFFLE] or fit
    chosen, reasons = _cheapest(orderly, board.baseline)
    ties = tuple(row.key for row in level if row is not chosen)
    said = [
        _use(chosen, board.row(board.baseline), board.baseline),
        *_other_caches(board, cache),
        *_why(chosen, best, [row for row in level if row in orderly], reasons, board.baseline),
        *_order(chosen, [row for row in fit if row not in orderly], ranked),
    ]
    base = board.row(board.baseline)
    if base is not None and chosen.entry.batch_size != base.entry.batch_size:
        said.append("Another batch size also changes how the model learns: check the learning rate and the accuracy")
    if few := [row for row in ranked if row.too_few is not None]:
        said.append(f"Too few steady steps to compare {_listed(few)}: give trials more steps or seconds")
    if any(row.n_runs < 2 for row in level):
        said.append("With one run of a setting it is not known how much its runs differ: repeat it to be sure")
    return Recommendation(chosen.key, " ".join(f"{sentence}." for sentence in said), ties)


def _cheapest(level: Sequence[LeaderboardRow], baseline: str) -> tuple[LeaderboardRow, list[str]]:
    """Of settings that are equally fast, the one to take, and in which costs it clearly beats others."""
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


def _other_caches(board: Leaderboard, cache: str) -> list[str]:
    if all(row.entry.page_cache == cache for row in board.rows if row.rank is not None):
        return []
    return [f"Only settings with the page cache {cache} were weighed: another state of it is another experiment"]


def _order(chosen: LeaderboardRow, passed: Sequence[LeaderboardRow], ranked: Sequence[LeaderboardRow]) -> list[str]:
    """Returns what a reader has to know of the order of an epoch's samples, where it is no full shuffle."""
    if passed:
        do = "does" if len(passed) == 1 else "do"
        return [f"As fast, but {_listed(passed)} {do} not shuffle all samples, which can cost accuracy"]
    if chosen.entry.shuffle == FULL_SHUFFLE:
        return []
    said = f"It {ORDER_WORDS.get(chosen.entry.shuffle, 'does not shuffle all samples')}, which can cost accuracy"
    full = next((row for row in ranked if row.entry.shuffle == FULL_SHUFFLE), None)
    if full is None:
        return [said]
    return [f"{said}; the fastest that shuffles all is {setting_in_words(full.entry)}, {_speed(full)}"]


def _clearly_more(scale: Scale, cost: float, least: float) -> bool:
    return cost > max(least * (1 + CLEARLY_MORE_FRAC), least + scale.grain)


def _too_few(row: LeaderboardRow) -> str:
    n = f"{row.too_few} steady {'step' if row.too_few == 1 else 'steps'}"
    are = "is" if row.too_few == 1 else "are"
    return (
        f"{n} of {setting_in_words(row.entry)}, the fastest so far, {are} too few: give trials more steps or seconds."
    )


def _names(rows: Sequence[LeaderboardRow]) -> list[str]:
    names = [setting_in_words(row.entry) for row in rows[:MOST_NAMED]]
    return [*names, f"{len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else names


def _listed(rows: Sequence[LeaderboardRow]) -> str:
    *names, last = _names(rows)
    return " and ".join(filter(None, ["; ".join(names), last]))


def _speed(row: LeaderboardRow) -> str:
    return formats.number(row.samples_per_s, "samples/s")


def _use(chosen: LeaderboardRow, base: LeaderboardRow | None, baseline: str) -> str:
    speed = _speed(chosen)
    if chosen.key == baseline:
        kept = f"Keep {setting_in_words(chosen.entry)}, the baseline, at {speed}"
        return f"{kept}: nothing that was tried was clearly faster"
    use = f"Use {setting_in_words(chosen.entry)}: {speed}"
    if base is None or not math.isfinite(chosen.speed_up):
        return f"{use}; the baseline gave no figures to compare with"
    runs = f"{chosen.n_runs} {'run' if chosen.n_runs == 1 else 'runs'}"
    low, high = (formats.number(v) for v in (chosen.speed_up_low, chosen.speed_up_high))
    of = f"{low} to {high}, {runs}" if math.isfinite(chosen.speed_up_low) else runs
    tie = ", a tie" if chosen.tie else ""
    return f"{use}, {formats.number(chosen.speed_up)} times that of {setting_in_words(base.entry)} ({of}{tie})"


def _why(
    chosen: LeaderboardRow, best: LeaderboardRow, level: Sequence[LeaderboardRow], reasons: Sequence[str], baseline: str
) -> list[str]:
    others = [row for row in level if row is not chosen]
    if not others:
        return []
    tied = _listed(others)
    if reasons:
        return [f"Its speed cannot be told from that of {tied}; it saves {', '.join(reasons)}"]
    if chosen.key == baseline:
        return [f"Its speed cannot be told from that of {tied}; none costs clearly less"]
    which = "it is the fastest by a hair" if chosen is best else "it costs no more"
    return [f"Its speed cannot be told from that of {tied}; none costs clearly less, and {which}"]
