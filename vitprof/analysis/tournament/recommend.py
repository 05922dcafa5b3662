"""The setting to use, and why; what settings cost: break-even and Pareto fronts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vitprof import formats
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.entries import key_in_words, setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow

FULL_SHUFFLE = "full"
ORDER_WORDS = {"none": "does not shuffle", "block": "shuffles blocks of neighbours only"}
"""Order of an epoch's samples (`RunConfig.shuffle`) -> what a setting with it does."""
MOST_NAMED = 3
CLEARLY_MORE_FRAC = 0.10
"""A cost that is higher by a smaller share than this does not count: a setting's memory varies by
some percent."""


@dataclass(frozen=True)
class Scale:
    """A cost that settings are compared by."""

    name: str
    value: Callable[[LeaderboardRow], float]
    grain: float
    """A smaller difference than this does not count either; in the unit of the cost."""
    words: Callable[[float], str]

    def of(self, row: LeaderboardRow) -> float:
        value = self.value(row)
        return math.inf if math.isnan(value) else value

    def dearer(self, rows: Sequence[LeaderboardRow], least: float) -> list[LeaderboardRow]:
        """Returns the settings that cost clearly more than `least`."""
        return [
            row
            for row in rows
            if self.of(row) > max(least * (1 + CLEARLY_MORE_FRAC), least + self.grain)
        ]


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
    """What to use, how much faster it is, how sure that is, and why it rather than another that is
    as fast."""
    equals: tuple[str, ...]
    """Keys of the other settings that are as fast; while undecided, of those that can be the
    fastest."""
    probability: float = math.nan
    """Probability that no other setting is faster than it by more than 5%; NaN while it is too
    early."""


def recommend(board: Leaderboard, *, keep: str = "") -> Recommendation | None:
    """Returns the setting that is most probably the best trade; None while nothing is ranked. It is
    decided once one is surely enough (`Leaderboard.level`) within 5% of the fastest; until then the
    key is None and the sentence says what is missing. Of equal ones, those that shuffle all samples
    are preferred, then the costs in `SCALES` in turn, then speed; `keep`, the tournament's own
    baseline, if it costs no more. Only settings with the baseline's page cache count.
    """
    keep = keep or board.baseline
    every = [row for row in board.rows if row.rank is not None]
    own = board.row(keep)
    best = next(
        (row for row in every if own is not None and row.entry.page_cache == own.entry.page_cache),
        None,
    )
    best = best or next(iter(every), None)
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
    chosen, savings = cheapest(orderly, keep)
    base = board.row(board.baseline)
    sentences = [
        _use(
            chosen,
            base,
            board.baseline,
            "; with other programs running, " if _disturbed(ranked) else "; ",
        )
    ]
    if len(ranked) < len(every):
        compared = f"Only settings with the page cache {cache} were compared"
        sentences.append(f"{compared}: cold and warm are different experiments")
    if others := [row for row in orderly if row is not chosen]:
        as_fast = f"{_listed(others)} {_is(others)} as fast within 5%"
        which = "it is the fastest by a hair" if chosen is best else "it costs no more"
        saves = (
            f"none costs clearly less than {setting_in_words(chosen.entry)}: {', '.join(savings)}"
        )
        sentences.append(
            f"{as_fast}; {saves if savings else f'none costs clearly less, and {which}'}"
        )
    if faster := [row for row in ranked[: ranked.index(chosen)] if row not in fast]:
        sentences.append(
            f"{_listed(faster)} measured faster, but {_is(faster, 'its', 'their')} runs differ too much"
        )
    sentences += [
        *_order(chosen, [row for row in fast if row not in orderly], ranked),
        *_disturbed(ranked),
    ]
    sentences += _without_starts(ranked)
    if chosen.entry.losses:
        sentences.append(f"Note the losses: {chosen.entry.losses}")
    if base is not None and chosen.entry.batch_size != base.entry.batch_size:
        also = "also changes how the model learns: check the learning rate and the accuracy"
        sentences.append(f"Another batch size {also}")
    if few := [row for row in ranked if row.too_few is not None]:
        sentences.append(f"Too few steady steps to compare {_listed(few)}: make the runs longer")
    equals = tuple(row.key for row in fast if row is not chosen)
    return Recommendation(chosen.key, _joined(sentences), equals, chosen.near_best)


def can_be_fastest(board: Leaderboard) -> tuple[str, ...]:
    """Returns the settings with the baseline's page cache that another round should measure, the
    most probable first: those that may be within 5% of the fastest and were not cut short. Empty
    once it is decided.
    """
    best = board.row(board.best) if board.best is not None else None
    if best is None:
        return ()
    rivals = [
        r for r in board.rows if r.rank is not None and r.entry.page_cache == best.entry.page_cache
    ]
    if len(rivals) < 2 or any(row.near_best >= board.level for row in rivals):
        return ()
    running = [row for row in rivals if row.entry.status != "cut" and not row.behind]
    return tuple(row.key for row in sorted(running, key=lambda row: (-row.near_best, row.rank)))


def undecided_words(keys: Sequence[str]) -> str:
    """Returns what is undecided between the settings of `can_be_fastest`: "undecided between A and B"."""
    names = [key_in_words(key) for key in keys]
    if len(names) == 1:
        return f"undecided whether {names[0]} is the fastest"
    return f"undecided between {_enumerated(names)}"


def _too_early(board: Leaderboard, best: LeaderboardRow, ranked: Sequence[LeaderboardRow]) -> str:
    name = setting_in_words(best.entry)
    if best.too_few is not None:
        steps = formats.count(best.too_few, "steady step")
        are = "is" if best.too_few == 1 else "are"
        return f"{steps} of {name}, the fastest so far, {are} too few: make the runs longer."
    if len(ranked) < 2:
        rest = (
            "there is nothing to compare it with"
            if len(board.rows) == 1
            else "nothing else has given a figure yet"
        )
        return f"Too early: only {name} has run; {rest}."
    if not all(math.isnan(row.near_best) for row in ranked):
        return ""
    if nothing := [row for row in ranked if not row.n_runs and row.entry.status != "cut"]:
        return (
            f"Undecided so far: other programs disturbed every run of {_listed(nothing)}, so nothing of that counts. "
            "End them and run more rounds."
        )
    if once := [row for row in ranked if row.n_runs < 2 and row.entry.status != "cut"]:
        return (
            f"Too early: of {_listed(once)} one run counts, so it is not known how much runs differ. "
            f"The fastest so far: {name}, {_speed(best)}. More rounds are needed."
        )
    few = [row for row in ranked if row.too_few is not None]
    return f"Too early: too few steady steps to compare {_listed(few or ranked)}: make the runs longer."


def _undecided(board: Leaderboard, ranked: Sequence[LeaderboardRow]) -> Recommendation:
    first = max(ranked, key=lambda row: -1.0 if math.isnan(row.near_best) else row.near_best)
    rivals = [row for row in ranked if row is not first and not row.behind]
    but = f", but {_listed(rivals)} can be faster by more than 5%" if rivals else ""
    sentences = [
        f"Undecided so far: {setting_in_words(first.entry)} is the most probable{but}",
        f"The chance that none is faster: {_chance(first.near_best)}, and {_chance(board.level)} is needed: "
        "run more rounds",
        *_disturbed(ranked),
        *_without_starts(ranked),
    ]
    return Recommendation(
        None, _joined(sentences), tuple(row.key for row in (first, *rivals)), first.near_best
    )


def least_others(row: LeaderboardRow) -> float:
    """Returns the CPU cores that other programs took at least, in each run of a setting; NaN where
    it is not known."""
    return min(
        (o.others_cores for o in row.entry.outcomes if math.isfinite(o.others_cores)),
        default=math.nan,
    )


DISTURBED = "had the machine to itself"


def _disturbed(ranked: Sequence[LeaderboardRow]) -> list[str]:
    """Returns a warning if other programs took cores in every run of a setting: more rounds do not
    help."""
    busy = [row for row in ranked if least_others(row) >= OTHERS_CORES]
    if not busy:
        return []
    of = "any setting" if len(busy) == len(ranked) else _listed(busy)
    took = f"other programs took at least {formats.number(min(map(least_others, busy)))} CPU cores"
    do = "End them and start a new tournament: without them another setting can be the fastest"
    return [f"No run of {of} {DISTURBED}: {took}. {do}"]


def _without_starts(ranked: Sequence[LeaderboardRow]) -> list[str]:
    short = [
        r
        for r in ranked
        if any(len(o.blocks_per_s) and math.isnan(o.over_epochs) for o in r.entry.outcomes)
    ]
    if not short:
        return []
    which = "no setting ran" if len(short) == len(ranked) else f"{_listed(short)} did not run"
    return [f"Waits as epochs begin are in no figure: {which} into a second epoch"]


def _order(
    chosen: LeaderboardRow, passed: Sequence[LeaderboardRow], ranked: Sequence[LeaderboardRow]
) -> list[str]:
    if passed:
        do = _is(passed, "does", "do")
        return [
            f"As fast, but {_listed(passed)} {do} not shuffle all samples, which can cost accuracy"
        ]
    if chosen.entry.shuffle == FULL_SHUFFLE:
        return []
    order = f"It {ORDER_WORDS.get(chosen.entry.shuffle, 'does not shuffle all samples')}, which can cost accuracy"
    full = next((row for row in ranked if row.entry.shuffle == FULL_SHUFFLE), None)
    if full is None:
        return [order]
    return [
        f"{order}; the fastest that shuffles all is {setting_in_words(full.entry)}, {_speed(full)}"
    ]


def _joined(sentences: Sequence[str]) -> str:
    return " ".join(f"{sentence}." for sentence in sentences)


def _is(rows: Sequence[LeaderboardRow], one: str = "is", several: str = "are") -> str:
    return one if len(rows) == 1 else several


def _listed(rows: Sequence[LeaderboardRow]) -> str:
    return _enumerated([setting_in_words(row.entry) for row in rows])


def _enumerated(names: Sequence[str]) -> str:
    """Returns names, which may have commas, as "a, 1; b, 2 and c, 3"; the first few of many."""
    shown = list(names[:MOST_NAMED])
    n_more = len(names) - len(shown)
    if n_more:
        shown.append(f"{n_more} more")
    *first, last = shown
    return f"{'; '.join(first)} and {last}" if first else last


def _speed(row: LeaderboardRow) -> str:
    return formats.number(row.samples_per_s, "samples/s")


def _use(chosen: LeaderboardRow, base: LeaderboardRow | None, baseline: str, joint: str) -> str:
    p = chosen.near_best
    words = "almost certain" if p >= 0.99 else "very probable"
    probable = "practically certain (over 99.9%)" if p >= 0.999 else f"{words} ({100 * p:.3g}%)"
    speed = _speed(chosen)
    sure = f"it is {probable} that no other of these is faster by more than 5%"
    if chosen.key == baseline:
        return f"Keep {setting_in_words(chosen.entry)}, the baseline, at {speed}{joint}{sure}"
    use = f"Use {setting_in_words(chosen.entry)}: {speed}"
    if base is None or not math.isfinite(chosen.speed_up):
        return f"{use}; the baseline gave no figures to compare with{joint}{sure}"
    runs = formats.count(chosen.n_runs, "run")
    low, high = (formats.number(v) for v in (chosen.speed_up_low, chosen.speed_up_high))
    of = f"{low} to {high}, {runs}" if math.isfinite(chosen.speed_up_low) else runs
    equal = {"equal": ", as fast within 5%", "undecided": ", undecided"}.get(
        chosen.against_baseline, ""
    )
    times = f"{formats.number(chosen.speed_up)} times that of {setting_in_words(base.entry)} ({of}{equal})"
    return f"{use}, {times}{joint}{sure}"


def _chance(p: float) -> str:
    return f"{100 * p:.2g}%" if p < 0.95 else f"{math.floor(1e4 * p + 1e-6) / 100:.4g}%"


def cheapest(level: Sequence[LeaderboardRow], baseline: str) -> tuple[LeaderboardRow, list[str]]:
    """Returns which of the equally fast settings `level` to use (`baseline` or the best ranked if
    all cost the same), and the costs in which it clearly beats others, in words.
    """
    left = list(level)
    lost: list[tuple[Scale, list[LeaderboardRow]]] = []
    for scale in SCALES:
        least = min(map(scale.of, left))
        if math.isfinite(least):
            lost.append((scale, scale.dearer(left, least)))
            left = [row for row in left if row not in lost[-1][1]]
    chosen = next(
        (row for row in left if row.key == baseline), min(left, key=lambda row: row.rank or 0)
    )
    savings = []
    for scale, rows in lost:
        own = scale.of(chosen)
        if beaten := scale.dearer(rows, own):
            dearest = max(map(scale.of, beaten))
            against = f" against up to {scale.words(dearest)}" if math.isfinite(dearest) else ""
            savings.append(f"{scale.name} ({scale.words(own)}{against})")
    return chosen, savings


Cost = Literal["rss_bytes", "ram_bytes", "disk_bytes", "prepare_s"]


@dataclass(frozen=True)
class BreakEven:
    """A setting against the baseline, over the whole training."""

    key: str
    epochs: float
    """Epochs from which its total time is below the baseline's; 0: at once, inf: never, NaN: not
    known."""
    low: float
    high: float
    """Most epochs that it allows; inf where it may never pay."""
    extra_s: float
    """Seconds that it needs before the first epoch beyond the baseline's: building the storage and
    staging."""
    sentence: str
    """In words: "pays for its preparation (12 s) after 3 epochs"."""


def setup_s(row: LeaderboardRow) -> float:
    """Returns the seconds that a setting costs before the first epoch, building its storage and
    staging; NaN if not known.
    """
    staged = [
        o.summary.stage_s
        for o in row.entry.outcomes
        if o.summary and math.isfinite(o.summary.stage_s)
    ]
    return row.entry.prepare_s + (math.fsum(staged) / len(staged) if staged else 0.0)


def break_even(board: Leaderboard) -> tuple[BreakEven, ...]:
    """Returns from which epoch on each ranked setting's setup + epochs * epoch time is below the
    baseline's, by rank. The interval is the speed-up's; if that contains 1, its upper end is
    infinite.
    """
    base = board.row(board.baseline)
    if base is None or not math.isfinite(base.epoch_s):
        return ()
    return tuple(
        _pays(row, base) for row in board.rows if row.rank is not None and row.key != base.key
    )


def _pays(row: LeaderboardRow, base: LeaderboardRow) -> BreakEven:
    extra = setup_s(row) - setup_s(base)
    # Measured epochs include the wait at their start: their ratio is near the speed-up, not equal
    # to it.
    scale = base.epoch_s / row.epoch_s / row.speed_up
    speed_ups = (row.speed_up, row.speed_up_high, row.speed_up_low)
    gain, *gains = (base.epoch_s * (1 - 1 / (speed_up * scale)) for speed_up in speed_ups)
    epochs, low, high = (_epochs(extra, g) for g in (gain, *gains))
    return BreakEven(
        row.key, epochs, low, high, extra, _sentence(row, extra, gain, (epochs, low, high))
    )


def _epochs(extra: float, gain: float) -> float:
    if math.isnan(extra) or math.isnan(gain):
        return math.nan
    if gain <= 0:
        return 0.0 if gain == 0 and extra < 0 else math.inf
    return max(0.0, extra / gain)


def _sentence(
    row: LeaderboardRow, extra: float, gain: float, interval: tuple[float, float, float]
) -> str:
    epochs, low, high = (math.ceil(n) if math.isfinite(n) else n for n in interval)
    cost = formats.seconds(abs(extra))
    if math.isnan(epochs):
        return "not known: the time of its preparation was not measured"
    if row.against_baseline == "undecided":
        return "not known: whether it is faster than the baseline is undecided"
    if row.against_baseline == "equal" and row.speed_up_low <= 1 <= row.speed_up_high:
        if extra > 0:
            return f"does not pay for its preparation ({cost}): it is as fast as the baseline, within 5%"
        saved = (
            f" and saves {cost} of preparation" if extra < 0 else ", and needs no more preparation"
        )
        return f"as fast as the baseline, within 5%{saved}"
    if gain < 0 and extra < 0:
        ahead = math.floor(extra / gain)
        first = f"ahead for the first {formats.count(ahead, 'epoch')} only"
        until = first if ahead else "the first epoch already costs more than that"
        return f"slower, but saves {cost} of preparation: {until}"
    if math.isinf(epochs):
        return f"never pays: it is slower than the baseline{f' and costs {cost} of preparation more' if extra else ''}"
    if epochs == 0:
        return "faster from the first epoch on: it needs no preparation (reading the set at each start is not counted)"
    spread = ""
    if math.isfinite(low) and (low, high) != (epochs, epochs):
        spread = f" ({low:,} to {f'{high:,}' if math.isfinite(high) else 'never'})"
    return f"pays for its preparation ({cost}) after {formats.count(int(epochs), 'epoch')}{spread}"


def cost_of(row: LeaderboardRow, against: Cost) -> float:
    """Returns the cost of a setting: bytes, or seconds for "prepare_s"; NaN where it is not
    known.
    """
    return row.rss_bytes if against == "rss_bytes" else float(getattr(row.entry, against))


def pareto(board: Leaderboard, against: Cost) -> tuple[str, ...]:
    """Returns the keys of the ranked settings on the Pareto front by their estimates, the cheapest
    first (Pareto, Manuale di economia politica, 1906, chapter 3). Settings alike in both are on it
    together.
    """
    points = [
        (cost_of(row, against), -row.samples_per_s, row.key)
        for row in board.rows
        if row.rank is not None
    ]
    front: list[tuple[float, float, str]] = []
    for point in sorted(point for point in points if math.isfinite(point[0])):
        if not front or point[:2] == front[-1][:2] or point[1] < front[-1][1]:
            front.append(point)
    return tuple(key for _, _, key in front)
