"""The setting to use, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitprof import formats
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.entries import setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow

FULL_SHUFFLE = "full"
ORDER_WORDS = {"none": "does not shuffle", "block": "shuffles blocks of neighbours only"}
"""Order of an epoch's samples (`RunConfig.shuffle`) -> what a setting with it does."""
MOST_NAMED = 3
"""Settings that a sentence names at most."""
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


@dataclass(frozen=True)
class Recommendation:
    """The setting to use with its reason, or why none can be named yet."""

    key: str | None
    """None while it is too early, or undecided."""
    sentence: str
    """What to use, how much faster it is, how sure that is, and why it rather than another that is as fast."""
    equals: tuple[str, ...]
    """Keys of the other settings that are as fast; while undecided, of those that can be the fastest."""
    probability: float = math.nan
    """Probability that no other setting is faster than it by more than 5%; NaN while it is too early."""


def recommend(board: Leaderboard, *, keep: str = "") -> Recommendation | None:
    """Returns the setting that is most probably the best trade; None while nothing is ranked.

    `keep` is the tournament's own baseline, if `board` has another one: the recommendation does not depend on the
    setting that a reader compares with.

    It is decided once one setting is surely enough (`Leaderboard.level`) within 5% of the fastest. Of those, and of
    those that are equal to the fastest, the one that costs least is recommended. Until then, or if too little was
    measured, `Recommendation.key` is None and the sentence says what is missing. Only settings with the baseline's page
    cache count: cold files are another experiment. The baseline is kept if it is among the fastest and costs no more.
    Settings that shuffle all samples are preferred.

    Costs are compared in turn: memory of the processes, RAM disk and kept samples, disk, preparation, workers. Each
    rules out the settings that cost clearly more than the cheapest (`Scale`); an unknown cost counts as high.
    Speed decides among the rest. A setting with its own batch size trains differently: the sentence says so.
    """
    keep = keep or board.baseline
    every = [row for row in board.rows if row.rank is not None]
    own = board.row(keep)
    alike = [row for row in every if own is not None and row.entry.page_cache == own.entry.page_cache]
    best = next(iter(alike or every), None)
    if best is None:
        return None
    cache = best.entry.page_cache
    ranked = [row for row in every if row.entry.page_cache == cache]
    if reason := _too_early(board, best, ranked):
        return Recommendation(None, reason, ())
    if not any(row.near_best >= board.level for row in ranked):
        return _undecided(board, ranked)
    fast = [row for row in ranked if row.near_best >= board.level or row.standing == "equal"]
    orderly = [row for row in fast if row.entry.shuffle == FULL_SHUFFLE] or fast
    chosen, reasons = cheapest(orderly, keep)
    base = board.row(board.baseline)
    sentences = [
        _use(chosen, base, board.baseline),
        *_other_caches(board, cache),
        *_reasons(chosen, best, orderly, reasons),
        *_unsure([row for row in ranked[: ranked.index(chosen)] if row not in fast]),
        *_order(chosen, [row for row in fast if row not in orderly], ranked),
        *_disturbed(ranked),
    ]
    if chosen.entry.losses:
        sentences.append(f"Note the losses: {chosen.entry.losses}")
    if base is not None and chosen.entry.batch_size != base.entry.batch_size:
        sentences.append(
            "Another batch size also changes how the model learns: check the learning rate and the accuracy"
        )
    if few := [row for row in ranked if row.too_few is not None]:
        sentences.append(f"Too few steady steps to compare {_listed(few)}: make the runs longer")
    equals = tuple(row.key for row in fast if row is not chosen)
    return Recommendation(chosen.key, _sentences(sentences), equals, chosen.near_best)


def can_be_fastest(board: Leaderboard) -> tuple[str, ...]:
    """Returns the settings that another round should measure, the most probable first; empty once it is decided.

    Those are the settings with the baseline's page cache, not cut short, for which it is not sure that another one is
    faster by more than 5%; all of them while that is not known.
    """
    best = board.row(board.best) if board.best is not None else None
    if best is None:
        return ()
    rivals = [r for r in board.rows if r.rank is not None and r.entry.page_cache == best.entry.page_cache]
    if len(rivals) < 2 or any(row.near_best >= board.level for row in rivals):
        return ()
    running = [row for row in rivals if row.entry.status != "cut" and not row.near_best <= 1 - board.level]
    return tuple(row.key for row in sorted(running, key=lambda row: (-row.near_best, row.rank)))


def _too_early(board: Leaderboard, best: LeaderboardRow, ranked: Sequence[LeaderboardRow]) -> str:
    """Returns why nothing can be said yet; "" if something can."""
    if best.too_few is not None:
        return _too_few(best)
    if len(ranked) < 2:
        rest = "there is nothing to compare it with" if len(board.rows) == 1 else "nothing else has given a figure yet"
        return f"Too early: only {setting_in_words(best.entry)} has run; {rest}."
    if all(math.isnan(row.near_best) for row in ranked):
        once = [row for row in ranked if row.n_runs < 2 and row.entry.status != "cut"]
        few = [row for row in ranked if row.too_few is not None and row not in once]
        if once:
            have = "has" if len(once) == 1 else "have"
            return (
                f"Too early: {_listed(once)} {have} run once, so it is not known how much runs differ. "
                f"The fastest so far: {setting_in_words(best.entry)}, {_speed(best)}. More rounds are needed."
            )
        return f"Too early: too few steady steps to compare {_listed(few or ranked)}: make the runs longer."
    return ""


def _undecided(board: Leaderboard, ranked: Sequence[LeaderboardRow]) -> Recommendation:
    first = max(ranked, key=lambda row: -1.0 if math.isnan(row.near_best) else row.near_best)
    rivals = [row for row in ranked if row is not first and row.near_best > 1 - board.level]
    sentences = [
        f"Undecided so far: {setting_in_words(first.entry)} is the most probable, but {_listed(rivals)} can be faster "
        f"by more than 5%"
        if rivals
        else f"Undecided so far: {setting_in_words(first.entry)} is the most probable",
        f"The chance that none is faster: {_chance(first.near_best)}, and {_chance(board.level)} is needed: "
        "run more rounds",
        *_disturbed(ranked),
    ]
    return Recommendation(None, _sentences(sentences), tuple(row.key for row in (first, *rivals)), first.near_best)


def _disturbed(ranked: Sequence[LeaderboardRow]) -> list[str]:
    """Returns a warning if other programs took cores in every run of a setting.

    More rounds do not show how fast it is on a quiet machine, and other programs do not slow all settings alike.
    """
    taken = {row.key: [o.others_cores for o in row.entry.outcomes if math.isfinite(o.others_cores)] for row in ranked}
    least = {key: min(cores, default=math.nan) for key, cores in taken.items()}
    busy = [row for row in ranked if least[row.key] >= OTHERS_CORES]
    if not busy:
        return []
    of = "any setting" if len(busy) == len(ranked) else _listed(busy)
    cores = formats.number(min(least[row.key] for row in busy))
    return [
        f"No run of {of} had the machine to itself: other programs took at least {cores} CPU cores. End them and start "
        "a new tournament: without them another setting can be the fastest"
    ]


def _sentences(sentences: Sequence[str]) -> str:
    return " ".join(f"{sentence}." for sentence in sentences)


def _other_caches(board: Leaderboard, cache: str) -> list[str]:
    if all(row.entry.page_cache == cache for row in board.rows if row.rank is not None):
        return []
    return [f"Only settings with the page cache {cache} were compared: cold and warm are different experiments"]


def _order(chosen: LeaderboardRow, passed: Sequence[LeaderboardRow], ranked: Sequence[LeaderboardRow]) -> list[str]:
    """Returns what a reader must know of the order of an epoch's samples, if it is not a full shuffle."""
    if passed:
        do = "does" if len(passed) == 1 else "do"
        return [f"As fast, but {_listed(passed)} {do} not shuffle all samples, which can cost accuracy"]
    if chosen.entry.shuffle == FULL_SHUFFLE:
        return []
    order = f"It {ORDER_WORDS.get(chosen.entry.shuffle, 'does not shuffle all samples')}, which can cost accuracy"
    full = next((row for row in ranked if row.entry.shuffle == FULL_SHUFFLE), None)
    if full is None:
        return [order]
    return [f"{order}; the fastest that shuffles all is {setting_in_words(full.entry)}, {_speed(full)}"]


def _too_few(row: LeaderboardRow) -> str:
    n = f"{row.too_few} steady {'step' if row.too_few == 1 else 'steps'}"
    are = "is" if row.too_few == 1 else "are"
    return f"{n} of {setting_in_words(row.entry)}, the fastest so far, {are} too few: make the runs longer."


def _names(rows: Sequence[LeaderboardRow]) -> list[str]:
    names = [setting_in_words(row.entry) for row in rows[:MOST_NAMED]]
    return [*names, f"{len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else names


def _listed(rows: Sequence[LeaderboardRow]) -> str:
    *names, last = _names(rows)
    return " and ".join(filter(None, ["; ".join(names), last]))


def _speed(row: LeaderboardRow) -> str:
    return formats.number(row.samples_per_s, "samples/s")


def _use(chosen: LeaderboardRow, base: LeaderboardRow | None, baseline: str) -> str:
    speed, sure = _speed(chosen), f"it is {_probability(chosen.near_best)} that no other is faster by more than 5%"
    if chosen.key == baseline:
        return f"Keep {setting_in_words(chosen.entry)}, the baseline, at {speed}: {sure}"
    use = f"Use {setting_in_words(chosen.entry)}: {speed}"
    if base is None or not math.isfinite(chosen.speed_up):
        return f"{use}; the baseline gave no figures to compare with; {sure}"
    runs = f"{chosen.n_runs} {'run' if chosen.n_runs == 1 else 'runs'}"
    low, high = (formats.number(v) for v in (chosen.speed_up_low, chosen.speed_up_high))
    of = f"{low} to {high}, {runs}" if math.isfinite(chosen.speed_up_low) else runs
    equal = ", as fast within 5%" if chosen.against_baseline == "equal" else ""
    times = f"{formats.number(chosen.speed_up)} times that of {setting_in_words(base.entry)} ({of}{equal})"
    return f"{use}, {times}; {sure}"


def _unsure(faster: Sequence[LeaderboardRow]) -> list[str]:
    """Returns why the settings above the chosen one in the table are not recommended."""
    if not faster:
        return []
    return [f"{_listed(faster)} measured faster, but {'its' if len(faster) == 1 else 'their'} runs differ too much"]


def _chance(p: float) -> str:
    """Returns a probability in percent; 100% only for certainty."""
    return f"{100 * p:.2g}%" if p < 0.95 else f"{math.floor(1e4 * p + 1e-6) / 100:.4g}%"


def _probability(p: float) -> str:
    """Returns a probability in words, with its figure."""
    if p >= 0.999:
        return "practically certain (over 99.9%)"
    return f"{'almost certain' if p >= 0.99 else 'very probable'} ({100 * p:.3g}%)"


def _reasons(
    chosen: LeaderboardRow, best: LeaderboardRow, fast: Sequence[LeaderboardRow], reasons: Sequence[str]
) -> list[str]:
    others = [row for row in fast if row is not chosen]
    if not others:
        return []
    as_fast = f"{_listed(others)} {'is' if len(others) == 1 else 'are'} as fast within 5%"
    if reasons:
        return [f"{as_fast}; {setting_in_words(chosen.entry)} saves {', '.join(reasons)}"]
    which = "it is the fastest by a hair" if chosen is best else "it costs no more"
    return [f"{as_fast}; none costs clearly less, and {which}"]


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
