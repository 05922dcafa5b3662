"""The setting to use, and why; what settings cost: break-even and Pareto fronts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vitprof import formats
from vitprof.analysis.faster_while_busy import LEAST_PAIRS, WHILE_BUSY
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.entries import (
    OUT_OF_THE_RACE,
    key_in_words,
    setting_in_words,
)
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow
from vitprof.config import own_script

FULL_SHUFFLE = "full"
ORDER_WORDS = {"none": "does not shuffle", "block": "shuffles blocks of neighbours only"}
"""Order of an epoch's samples (`RunConfig.shuffle`) -> what a setting with it does."""
MOST_NAMED = 3
BOUND_TO_COME = (
    f"after {LEAST_PAIRS} rounds in which they ran alike it can say at least how much faster a "
    "setting is"
)
"""What more rounds show while other programs run (`analysis.faster_while_busy`)."""
GOES_ON = "it goes on by itself"
"""What is said in place of what to do while more runs come by themselves."""
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


Outcome = Literal[
    "recommended", "fastest while busy", "faster while busy", "undecided", "too early"
]
"""What a tournament has come to, the same on every page. recommended: a setting is surely enough
within 5% of the fastest, and whether it is faster than the baseline is decided. fastest while busy:
the same, but other programs took cores in every run of a setting. faster while busy: a setting was
faster than the baseline in all rounds that other programs disturbed
(`analysis.faster_while_busy`). Only the first one is a change to make."""


@dataclass(frozen=True)
class Recommendation:
    """The setting to use with its reason, or why none can be named yet."""

    key: str | None
    """The setting that is most probably the best trade, to be used only where `is_firm`; None while it
    is too early, or undecided."""
    sentences: tuple[str, ...]
    """What to use, how much faster it is, how sure that is, and why it rather than another that is
    as fast; each ends with a full stop."""
    equals: tuple[str, ...]
    """Keys of the other settings that are as fast; while undecided, of those that can be the
    fastest."""
    probability: float = math.nan
    """Probability that no other setting is faster than it by more than 5%; NaN while it is too
    early."""
    disturbed: bool = False
    """Whether other programs took cores in every run of a setting."""
    outcome: Outcome = "undecided"
    """What the tournament has come to."""
    while_busy: str | None = None
    """Key of the setting that was faster than the baseline by most while other programs ran; None
    where none surely was."""

    @property
    def is_firm(self) -> bool:
        """Returns whether there is a setting to use. If not, nothing is recommended, patched or
        written as code."""
        return self.outcome == "recommended"

    @property
    def recommended(self) -> str | None:
        """Returns the key of the setting to use; None where there is none."""
        return self.key if self.is_firm else None

    @property
    def sentence(self) -> str:
        """Returns all sentences in one line."""
        return " ".join(self.sentences)


def title(best: Recommendation, *, ended: bool) -> str:
    """Returns what a tournament has come to, in a few words."""
    if best.is_firm:
        return "Recommended" if ended else "Best so far"
    if best.outcome == "fastest while busy":
        return "Fastest while other programs ran"
    if best.outcome == "faster while busy":
        return "Faster while other programs ran"
    return "Undecided" if ended else "Not decided yet"


@dataclass(frozen=True)
class _Choice:
    """The setting to use, of those that are as fast."""

    chosen: LeaderboardRow
    savings: tuple[str, ...]
    """The costs in which it clearly beats others, in words."""


@dataclass(frozen=True)
class _Answer:
    """A decided tournament, with what its sentences are made of."""

    board: Leaderboard
    ranked: tuple[LeaderboardRow, ...]
    """The settings that were compared, the fastest first."""
    fast: tuple[LeaderboardRow, ...]
    """Those that are as fast as the fastest."""
    orderly: tuple[LeaderboardRow, ...]
    """Those of them that shuffle all samples; all of them if none does."""
    choice: _Choice
    outcome: Outcome

    @property
    def chosen(self) -> LeaderboardRow:
        return self.choice.chosen


def recommend(
    board: Leaderboard, *, keep: str = "", goes_on: bool = False
) -> Recommendation | None:
    """Returns the setting that is most probably the best trade; None while nothing is ranked. It is
    decided once one is surely enough (`Leaderboard.level`) within 5% of the fastest; until then the
    key is None and the sentence says what is missing. Of equal ones, those that shuffle all samples
    are preferred, then the costs in `SCALES` in turn, then speed; `keep`, the tournament's own
    baseline, if it costs no more. Only settings with the baseline's page cache count. What was faster
    only while other programs ran is said first, and is never recommended.

    `goes_on`: whether more runs come by themselves, so that nobody has to start any.
    """
    keep = keep or board.baseline
    ranked = _compared(board, keep)
    if not ranked:
        return None
    busy = _fastest_while_busy(ranked)
    too_early = _too_early(board, ranked, busy, goes_on=goes_on)
    if too_early:
        return _not_yet(too_early, board, busy)
    if not any(row.near_best >= board.level for row in ranked):
        return _undecided(board, ranked, busy, goes_on=goes_on)
    fast = [row for row in ranked if row.near_best >= board.level or row.standing == "equal"]
    orderly = [row for row in fast if row.entry.shuffle == FULL_SHUFFLE] or fast
    choice = _cheapest(orderly, keep)
    disturbed = bool(_disturbed(ranked))
    outcome = _outcome(choice.chosen, busy, disturbed=disturbed)
    answer = _Answer(board, tuple(ranked), tuple(fast), tuple(orderly), choice, outcome)
    chosen = choice.chosen
    equals = tuple(row.key for row in fast if row is not chosen)
    said_first: list[str] = []
    if outcome == "faster while busy" and busy is not None:
        said_first = _while_busy(busy, board)
    return Recommendation(
        chosen.key,
        _ended([*said_first, *_reasons(answer)]),
        equals,
        chosen.near_best,
        disturbed=disturbed,
        outcome=outcome,
        while_busy=busy.key if said_first and busy is not None else None,
    )


def _not_yet(why: str, board: Leaderboard, busy: LeaderboardRow | None) -> Recommendation:
    """Returns that nothing firm can be said yet, and what can be said while other programs run."""
    if busy is None:
        return Recommendation(None, (why,), (), outcome="too early")
    sentences = (*_ended(_while_busy(busy, board)), why)
    return Recommendation(None, sentences, (), outcome="faster while busy", while_busy=busy.key)


def _outcome(chosen: LeaderboardRow, busy: LeaderboardRow | None, *, disturbed: bool) -> Outcome:
    """Returns what a tournament has come to in which a setting was chosen."""
    if chosen.against_baseline in ("undecided", WHILE_BUSY):
        return "undecided" if busy is None else "faster while busy"
    return "fastest while busy" if disturbed else "recommended"


def _fastest_while_busy(ranked: Sequence[LeaderboardRow]) -> LeaderboardRow | None:
    """Returns the setting that was surely faster than the baseline while other programs ran, by most;
    None without one."""
    known = [(row.while_busy.times, row) for row in ranked if row.while_busy is not None]
    return max(known, key=lambda each: each[0])[1] if known else None


def _while_busy(row: LeaderboardRow, board: Leaderboard) -> list[str]:
    """Returns what rounds show that other programs disturbed, and what they do not."""
    found = row.while_busy
    base = board.row(board.baseline)
    if found is None or base is None:
        return []
    times = found.words.removesuffix("x")
    of_base = f"{times} times as fast as {setting_in_words(base.entry)}"
    rounds = formats.count(found.n_rounds, "round")
    return [
        f"{setting_in_words(row.entry)} was {of_base} in each of {rounds}, {found.others_words}",
        "On a quiet machine it may gain less: repeat it there for a firm number",
    ]


def _compared(board: Leaderboard, keep: str) -> list[LeaderboardRow]:
    """Returns the ranked settings with the page cache of `keep`, or of the fastest if none has that one."""
    ranked = [row for row in board.rows if row.rank is not None]
    own = board.row(keep)
    if own is not None:
        alike = [row for row in ranked if row.entry.page_cache == own.entry.page_cache]
        if alike:
            return alike
    return [row for row in ranked if row.entry.page_cache == ranked[0].entry.page_cache]


def _reasons(answer: _Answer) -> list[str]:
    """Returns the sentences of a recommendation: what to use, and what a reader has to know of it."""
    passed = [row for row in answer.fast if row not in answer.orderly]
    return [
        _use(answer),
        *_one_page_cache(answer),
        *_as_fast(answer),
        *_measured_faster(answer),
        *_order(answer.chosen, passed, answer.ranked),
        *_disturbed(answer.ranked),
        *_without_starts(answer.ranked),
        *_batch_order(answer.chosen),
        *_pixels(answer.chosen),
        *_losses(answer.chosen),
        *_samples(answer.chosen),
        *_another_batch_size(answer),
        *_too_few_steps(answer.ranked),
    ]


def _one_page_cache(answer: _Answer) -> list[str]:
    n_ranked = sum(row.rank is not None for row in answer.board.rows)
    if len(answer.ranked) == n_ranked:
        return []
    cache = answer.chosen.entry.page_cache
    compared = f"Only settings with the page cache {cache} were compared"
    return [f"{compared}: cold and warm are different experiments"]


def _as_fast(answer: _Answer) -> list[str]:
    """Returns why the chosen setting rather than another that is as fast."""
    chosen = answer.chosen
    others = [row for row in answer.orderly if row is not chosen]
    if not others:
        return []
    as_fast = f"{_listed(others)} {_is(others)} as fast within 5%"
    savings = ", ".join(answer.choice.savings)
    if savings:
        name = setting_in_words(chosen.entry)
        return [f"{as_fast}; none costs clearly less than {name}: {savings}"]
    which = "it costs no more"
    if chosen is answer.ranked[0]:
        which = "it is the fastest by a hair"
    return [f"{as_fast}; none costs clearly less, and {which}"]


def _measured_faster(answer: _Answer) -> list[str]:
    above = answer.ranked[: answer.ranked.index(answer.chosen)]
    faster = [row for row in above if row not in answer.fast]
    if not faster:
        return []
    its = _is(faster, "its", "their")
    return [f"{_listed(faster)} measured faster, but {its} runs differ too much"]


def _batch_order(chosen: LeaderboardRow) -> list[str]:
    """Returns what a setting does to the order of a user's own script's batches."""
    changes = []
    if own_script.is_out_of_order(chosen.key):
        comes = "batches come as they are made, no longer in the sampler's order"
        changes.append(f"{comes}, so quick samples come before slow ones")
    if own_script.begins_early(chosen.key):
        changes.append(
            "an epoch begins before validation does, so its samples may come in another order"
        )
    return [f"Note the order: {change}" for change in changes]


def _pixels(chosen: LeaderboardRow) -> list[str]:
    return [f"Note the pixels: {chosen.entry.pixels}"] if chosen.entry.pixels else []


def _losses(chosen: LeaderboardRow) -> list[str]:
    return [f"Note the losses: {chosen.entry.losses}"] if chosen.entry.losses else []


def _samples(chosen: LeaderboardRow) -> list[str]:
    return [f"Note the data: {chosen.entry.samples}"] if chosen.entry.samples else []


def _another_batch_size(answer: _Answer) -> list[str]:
    base = answer.board.row(answer.board.baseline)
    if base is None or answer.chosen.entry.batch_size == base.entry.batch_size:
        return []
    also = "also changes how the model learns: check the learning rate and the accuracy"
    return [f"Another batch size {also}"]


def _too_few_steps(ranked: Sequence[LeaderboardRow]) -> list[str]:
    few = [row for row in ranked if row.too_few is not None]
    if not few:
        return []
    return [f"Too few steady steps to compare {_listed(few)}: make the runs longer"]


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


def _too_early(
    board: Leaderboard,
    ranked: Sequence[LeaderboardRow],
    busy: LeaderboardRow | None,
    *,
    goes_on: bool,
) -> str:
    """Returns why nothing firm can be said of the settings yet, and what to do; "" where something
    can. `busy`: what was surely faster while other programs ran."""
    best = ranked[0]
    name = setting_in_words(best.entry)
    if best.too_few is not None:
        steps = formats.count(best.too_few, "steady step")
        are = "is" if best.too_few == 1 else "are"
        which = name
        if best.standing == "fastest":
            which = f"{name}, the fastest so far,"
        return f"{steps} of {which} {are} too few: make the runs longer."
    if len(ranked) < 2:
        rest = "nothing else has given a figure yet"
        others = [row.entry for row in board.rows if row.key != best.key]
        if others and all(entry.status in OUT_OF_THE_RACE for entry in others):
            first = others[0]
            return (
                f"{name} is all that can be used: {setting_in_words(first)} is out: {first.reason}."
            )
        if len(board.rows) == 1:
            rest = "there is nothing to compare it with"
        return f"Too early: only {name} has run; {rest}."
    if not all(math.isnan(row.near_best) for row in ranked):
        return ""
    can_run = [row for row in ranked if row.entry.status != "cut"]
    disturbed = [row for row in can_run if not row.n_runs]
    if disturbed:
        why = f"other programs disturbed every run {_of_settings(disturbed, can_run)}"
        to_do = _what_ends_it(board, goes_on=goes_on)
        if busy is not None:  # what is sure is said first
            return f"No firm number so far: {why}. {to_do}."
        return f"Undecided so far: {why}, so no firm number follows from that. {to_do}."
    once = [row for row in can_run if row.n_runs < 2]
    if once:
        more = f"{formats.capitalised(GOES_ON)}." if goes_on else "Run more rounds."
        fastest = f"The fastest so far is {name}, at {_speed(best)}."
        return f"Too early: {_has_one_run(once, can_run)}, and needs two. {more} {fastest}"
    few = [row for row in ranked if row.too_few is not None]
    return f"Too early: too few steady steps to compare {_listed(few or ranked)}: make the runs longer."


def _of_settings(some: Sequence[LeaderboardRow], all_: Sequence[LeaderboardRow]) -> str:
    """Returns "of both settings" where `some` are all of them, else "with A and B"."""
    if len(some) < len(all_):
        return f"with {_listed(some)}"
    return "of both settings" if len(all_) == 2 else f"of all {len(all_)} settings"


def _what_ends_it(board: Leaderboard, *, goes_on: bool) -> str:
    """Returns what to do where other programs disturbed every run of a setting, and what more rounds
    beside them would show."""
    if not board.awaits_bound:
        end = "End those programs"
        return f"{end}; {GOES_ON}" if goes_on else f"{end} and run more rounds"
    if goes_on:
        return f"End those programs, or leave them: {BOUND_TO_COME}, and {GOES_ON}"
    return f"End those programs and run more rounds, or leave them: {BOUND_TO_COME}"


def was_faster_while_busy(board: Leaderboard) -> bool:
    """Returns whether a setting was surely faster than the baseline while other programs ran, and
    nothing firm is known. More rounds while the same programs run would not decide more."""
    best = recommend(board)
    return best is not None and best.outcome == "faster while busy"


def _has_one_run(once: Sequence[LeaderboardRow], can_run: Sequence[LeaderboardRow]) -> str:
    """Returns which of the settings `can_run` have one run that counts: those in `once`."""
    if len(once) == 1:
        return f"{setting_in_words(once[0].entry)} has one run that counts"
    if len(once) == len(can_run):
        return "each setting has one run that counts"
    return f"each of {len(once)} settings has one run that counts"


def _undecided(
    board: Leaderboard,
    ranked: Sequence[LeaderboardRow],
    busy: LeaderboardRow | None,
    *,
    goes_on: bool,
) -> Recommendation:
    first = max(ranked, key=lambda row: -1.0 if math.isnan(row.near_best) else row.near_best)
    rivals = [row for row in ranked if row is not first and not row.behind]
    probable = f"Undecided so far: {setting_in_words(first.entry)} is the most probable"
    if rivals:
        probable += f", but {_listed(rivals)} can be faster by more than 5%"
    chance = f"The chance that none is faster: {_chance(first.near_best)}"
    to_do = GOES_ON if goes_on else "run more rounds"
    sentences = [
        probable,
        f"{chance}, and {_chance(board.level)} is needed: {to_do}",
        *_disturbed(ranked),
        *_without_starts(ranked),
    ]
    keys = tuple(row.key for row in (first, *rivals))
    if busy is not None:
        sentences = [*_while_busy(busy, board), *sentences]
    return Recommendation(
        None,
        _ended(sentences),
        keys,
        first.near_best,
        outcome="undecided" if busy is None else "faster while busy",
        while_busy=None if busy is None else busy.key,
    )


def least_others(row: LeaderboardRow) -> float:
    """Returns the CPU cores that other programs took at least, in each run of a setting; NaN where
    it is not known."""
    cores = [outcome.others_cores for outcome in row.entry.outcomes]
    return min((each for each in cores if math.isfinite(each)), default=math.nan)


def _disturbed(ranked: Sequence[LeaderboardRow]) -> list[str]:
    """Returns a warning if other programs took cores in every run of a setting: more rounds do not
    help."""
    busy = [row for row in ranked if least_others(row) >= OTHERS_CORES]
    if not busy:
        return []
    of = "any setting" if len(busy) == len(ranked) else _listed(busy)
    took = f"other programs took at least {formats.number(min(map(least_others, busy)))} CPU cores"
    do = "End them and start a new tournament: without them another setting can be the fastest"
    return [f"No run of {of} had the machine to itself: {took}. {do}"]


def _without_starts(ranked: Sequence[LeaderboardRow]) -> list[str]:
    """Returns a warning if a setting saw no epoch begin but its first."""
    short = [row for row in ranked if _missed_starts(row)]
    if not short:
        return []
    which = "no setting ran" if len(short) == len(ranked) else f"{_listed(short)} did not run"
    return [f"Waits as epochs begin are in no figure: {which} into a second epoch"]


def _missed_starts(row: LeaderboardRow) -> bool:
    measured = [outcome for outcome in row.entry.outcomes if len(outcome.blocks_per_s)]
    return any(math.isnan(outcome.over_epochs) for outcome in measured)


def _order(
    chosen: LeaderboardRow, passed: Sequence[LeaderboardRow], ranked: Sequence[LeaderboardRow]
) -> list[str]:
    """Returns what to know of the order of samples; `passed`: settings as fast that were passed over for
    theirs."""
    if passed:
        do = _is(passed, "does", "do")
        which = f"As fast, but {_listed(passed)} {do} not shuffle all samples"
        return [f"{which}, which can cost accuracy"]
    if chosen.entry.shuffle == FULL_SHUFFLE:
        return []
    does = ORDER_WORDS.get(chosen.entry.shuffle, "does not shuffle all samples")
    order = f"It {does}, which can cost accuracy"
    full = next((row for row in ranked if row.entry.shuffle == FULL_SHUFFLE), None)
    if full is not None:
        order += (
            f"; the fastest that shuffles all is {setting_in_words(full.entry)}, {_speed(full)}"
        )
    return [order]


def _ended(sentences: Sequence[str]) -> tuple[str, ...]:
    """Returns the sentences with their full stops."""
    return tuple(f"{sentence}." for sentence in sentences)


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


def _use(answer: _Answer) -> str:
    chosen = answer.chosen
    joint = "; "
    if _disturbed(answer.ranked):
        joint = "; with other programs running, "
    sure = f"it is {_probable(chosen.near_best)} that no other of these is faster by more than 5%"
    is_firm = answer.outcome == "recommended"
    if chosen.key == answer.board.baseline:
        verb = "Keep" if is_firm else "Most probably the fastest:"
        keep = f"{verb} {setting_in_words(chosen.entry)}, the baseline, at {_speed(chosen)}"
        return f"{keep}{joint}{sure}"
    use = f"Most probably the fastest: {setting_in_words(chosen.entry)}, {_speed(chosen)}"
    if is_firm:
        use = f"Use {setting_in_words(chosen.entry)}: {_speed(chosen)}"
    elif answer.outcome == "undecided":
        use = f"Undecided against the baseline. {use}"
    if chosen.while_busy is not None:  # that is said first
        return f"{use}{joint}{sure}"
    base = answer.board.row(answer.board.baseline)
    if base is None or not math.isfinite(chosen.speed_up):
        return f"{use}; the baseline gave no figures to compare with{joint}{sure}"
    return f"{use}, {_times(chosen, base)}{joint}{sure}"


def _probable(p: float) -> str:
    if p >= 0.999:
        return "practically certain (over 99.9%)"
    words = "almost certain" if p >= 0.99 else "very probable"
    return f"{words} ({100 * p:.3g}%)"


def _times(chosen: LeaderboardRow, base: LeaderboardRow) -> str:
    """Returns "2.1 times that of the baseline (1.9 to 2.3, 3 runs)"."""
    about = formats.count(chosen.n_runs, "run")
    if math.isfinite(chosen.speed_up_low):
        low = formats.number(chosen.speed_up_low)
        high = formats.number(chosen.speed_up_high)
        about = f"{low} to {high}, {about}"
    about += AGAINST_BASELINE.get(chosen.against_baseline, "")
    ratio = formats.number(chosen.speed_up)
    return f"{ratio} times that of {setting_in_words(base.entry)} ({about})"


AGAINST_BASELINE = {"equal": ", as fast within 5%", "undecided": ", undecided"}
"""What to add to a speed-up that is neither clearly above nor below 1."""


def _chance(p: float) -> str:
    if p < 0.95:
        return f"{100 * p:.2g}%"
    # cut, not rounded: it never reads as what is needed while it is less
    return f"{math.floor(1e4 * p + 1e-6) / 100:.4g}%"


@dataclass(frozen=True)
class _Dearer:
    """Settings that were dropped because they cost clearly more than another."""

    scale: Scale
    rows: tuple[LeaderboardRow, ...]


def _cheapest(level: Sequence[LeaderboardRow], baseline: str) -> _Choice:
    """Returns which of the equally fast settings `level` to use: the cheapest by `SCALES` in turn, of those
    left `baseline`, or the best ranked.
    """
    left = list(level)
    dropped = []
    for scale in SCALES:
        least = min(map(scale.of, left))
        if math.isfinite(least):
            dearer = scale.dearer(left, least)
            dropped.append(_Dearer(scale, tuple(dearer)))
            left = [row for row in left if row not in dearer]
    chosen = min(left, key=lambda row: (row.key != baseline, row.rank or 0))
    savings = [_saving(chosen, each) for each in dropped]
    return _Choice(chosen, tuple(saving for saving in savings if saving))


def _saving(chosen: LeaderboardRow, dropped: _Dearer) -> str:
    """Returns a cost in which the chosen setting clearly beats others, in words; "" where it does not."""
    scale = dropped.scale
    own = scale.of(chosen)
    beaten = scale.dearer(dropped.rows, own)
    if not beaten:
        return ""
    dearest = max(map(scale.of, beaten))
    against = f" against up to {scale.words(dearest)}" if math.isfinite(dearest) else ""
    return f"{scale.name} ({scale.words(own)}{against})"


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
    summaries = [outcome.summary for outcome in row.entry.outcomes if outcome.summary is not None]
    staged = [summary.stage_s for summary in summaries if math.isfinite(summary.stage_s)]
    stage_s = math.fsum(staged) / len(staged) if staged else 0.0
    return row.entry.prepare_s + stage_s


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


@dataclass(frozen=True)
class _Trade:
    """What a setting costs once, and gains with every epoch, against the baseline."""

    extra_s: float
    """Seconds before the first epoch; negative where it saves some."""
    gain_s: float
    """Seconds of an epoch that it saves; negative where it is slower."""

    @property
    def epochs(self) -> float:
        """Returns the epochs from which its total time is less; NaN where that is not known."""
        if math.isnan(self.extra_s) or math.isnan(self.gain_s):
            return math.nan
        if self.gain_s > 0:
            return max(0.0, self.extra_s / self.gain_s)
        pays_at_once = self.gain_s == 0 and self.extra_s < 0
        return 0.0 if pays_at_once else math.inf


def _pays(row: LeaderboardRow, base: LeaderboardRow) -> BreakEven:
    extra_s = setup_s(row) - setup_s(base)
    # Measured epochs include the wait at their start: their ratio is near the speed-up, not equal
    # to it.
    scale = base.epoch_s / row.epoch_s / row.speed_up

    def trade(speed_up: float) -> _Trade:
        return _Trade(extra_s, base.epoch_s * (1 - 1 / (speed_up * scale)))

    likely = trade(row.speed_up)
    # the faster it is, the sooner it pays
    low = trade(row.speed_up_high).epochs
    high = trade(row.speed_up_low).epochs
    sentence = _sentence(row, likely, low, high)
    return BreakEven(row.key, likely.epochs, low, high, extra_s, sentence)


def _sentence(row: LeaderboardRow, trade: _Trade, low: float, high: float) -> str:
    """Returns from when on a setting pays, in words; `low`, `high`: the interval of the epochs."""
    if math.isnan(trade.epochs):
        return "not known: the time of its preparation was not measured"
    if row.against_baseline == "undecided":
        return "not known: whether it is faster than the baseline is undecided"
    if row.against_baseline == WHILE_BUSY:
        return "not known: how much faster it is was measured only while other programs ran"
    cost = formats.seconds(abs(trade.extra_s))
    if row.against_baseline == "equal" and row.speed_up_low <= 1 <= row.speed_up_high:
        return _as_fast_words(trade.extra_s, cost)
    if trade.gain_s < 0 and trade.extra_s < 0:
        return _slower_words(trade, cost)
    if math.isinf(trade.epochs):
        more = f" and costs {cost} of preparation more" if trade.extra_s else ""
        return f"never pays: it is slower than the baseline{more}"
    if trade.epochs == 0:
        return "faster from the first epoch on: it needs no preparation (reading the set at each start is not counted)"
    epochs = math.ceil(trade.epochs)
    after = f"pays for its preparation ({cost}) after {formats.count(epochs, 'epoch')}"
    return f"{after}{_spread(epochs, low, high)}"


def _as_fast_words(extra_s: float, cost: str) -> str:
    if extra_s > 0:
        return (
            f"does not pay for its preparation ({cost}): it is as fast as the baseline, within 5%"
        )
    if extra_s < 0:
        return f"as fast as the baseline, within 5% and saves {cost} of preparation"
    return "as fast as the baseline, within 5%, and needs no more preparation"


def _slower_words(trade: _Trade, cost: str) -> str:
    """Returns how long a setting that is slower, but needs less preparation, is ahead."""
    n_ahead = math.floor(trade.extra_s / trade.gain_s)
    until = "the first epoch already costs more than that"
    if n_ahead:
        until = f"ahead for the first {formats.count(n_ahead, 'epoch')} only"
    return f"slower, but saves {cost} of preparation: {until}"


def _spread(epochs: int, low: float, high: float) -> str:
    """Returns " (3 to 7)", or "" where that says no more than `epochs`."""
    if not math.isfinite(low):
        return ""
    least = math.ceil(low)
    if not math.isfinite(high):
        return f" ({least:,} to never)"
    most = math.ceil(high)
    return "" if least == most == epochs else f" ({least:,} to {most:,})"


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
