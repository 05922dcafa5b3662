"""The leaderboard of a tournament: each setting's throughput, and its speed-up over the baseline, with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vitprof import formats
from vitprof.analysis import arrays, thresholds
from vitprof.analysis.tournament import scores as scoring
from vitprof.analysis.tournament.entries import OUT_OF_THE_RACE, Entry, setting_in_words
from vitprof.analysis.tournament.nodes import within_nodes
from vitprof.recording.columns import RunSummary

Standing = Literal["", "fastest"] | scoring.Comparison

UNEVEN_FRAC = 0.9
"""A throughput over all time below this share of the score is stated, too."""
MOST_UNEVEN = 2
"""Settings for which that is stated, at most."""


@dataclass(frozen=True)
class LeaderboardRow:
    """A row of the leaderboard. Intervals are at `scores.sure_level`: together they hold with 95%."""

    rank: int | None
    """From 1; settings equal to the fastest share its rank. None without figures, or if it failed or was refused."""
    entry: Entry
    n_runs: int
    """Runs behind the figures; `Entry.n_made` counts all runs."""
    n_steps: int
    samples_per_s: float
    """All samples over all time of the rounds that count; NaN without figures, as is all that follows."""
    low: float
    high: float
    speed_up: float
    """Its score, which other programs disturb less than the throughput, over the baseline's; 1 for the baseline."""
    speed_up_low: float
    speed_up_high: float
    against_baseline: Literal[""] | scoring.Comparison
    """What the interval of the speed-up says; "" for the baseline itself, and if either has no figure."""
    epoch_s: float
    """Seconds for an epoch, measured or extrapolated (`leaderboard.leaderboard`)."""
    epoch_low: float
    epoch_high: float
    gpu_mem_bytes: float
    """Highest device memory of any run: NVML's figure, or what PyTorch reserved if NVML has none."""
    gpu_util_pct: float
    device_idle_frac: float
    """Mean share of the steady time that the device did not compute."""
    rss_bytes: float
    too_few: int | None = None
    """Its steady steps if they are fewer than `MIN_STEPS`, too few for an interval; else None."""
    standing: Standing = ""
    """Comparison with the fastest setting of the same page cache; "" if not ranked."""
    spoiled: Mapping[int, float] = field(default_factory=dict)
    """Rounds that do not count -> the CPU cores that other programs used then (`scores.spoiled`)."""
    near_best: float = math.nan
    """Probability that none of the same page cache is faster by more than 5%; NaN while a rival's noise is unknown."""
    score: arrays.Interval = arrays.UNKNOWN
    """samples/s that a fifth of its blocks reach, which settings are ranked by (`analysis.tournament.scores`)."""
    within_low: float = math.nan
    """Lower end of the interval from blocks within its runs, samples/s; known after one round too."""

    @property
    def key(self) -> str:
        return self.entry.key


def runs_words(row: LeaderboardRow) -> str:
    return (
        f"{row.n_runs}" if row.entry.n_made <= row.n_runs else f"{row.n_runs} of {row.entry.n_made}"
    )


def spoiled_words(row: LeaderboardRow) -> str:
    """Returns which rounds of a setting do not count, and why; "" if all do."""
    if not row.spoiled:
        return ""
    *others, last = map(str, row.spoiled)
    rounds = f"rounds {', '.join(others)} and {last}" if others else f"round {last}"
    return f"{rounds} not counted: other programs used {max(row.spoiled.values()):.1f} CPU cores"


@dataclass(frozen=True)
class Leaderboard:
    """A tournament's settings: the ranked ones first, by rank."""

    rows: tuple[LeaderboardRow, ...]
    baseline: str
    best: str | None
    """Key of the fastest setting with the baseline's page cache, or else of all; None if none is ranked."""
    n_train: int
    """Training images in an epoch; 0 where it is not known."""
    level: float
    """How sure an answer must be after the rounds so far (`scores.sure_level`)."""
    whole_epochs: bool
    """Whether the times of epochs were measured: every run behind a rank saw a whole one."""

    def row(self, key: str) -> LeaderboardRow | None:
        """Returns the row of this setting; None if it has none."""
        return next((row for row in self.rows if row.key == key), None)


def uneven_words(board: Leaderboard) -> str:
    """Returns what the settings made over all their time, for those where it is clearly less than the score shown."""
    uneven = [
        row
        for row in board.rows
        if row.rank is not None and row.samples_per_s < UNEVEN_FRAC * row.score.value
    ]
    if not uneven:
        return ""
    examples = "; ".join(
        f"{setting_in_words(row.entry)} made {formats.number(row.samples_per_s, 'samples/s')} over all its time, and "
        f"{formats.number(row.score.value)} in its fastest fifth"
        for row in uneven[:MOST_UNEVEN]
    )
    more = (
        f"; {len(uneven) - MOST_UNEVEN} more settings were as uneven"
        if len(uneven) > MOST_UNEVEN
        else ""
    )
    return f"The speeds shown are of the fastest fifth of the time, which is disturbed least: {examples}{more}."


def leaderboard(entries: Sequence[Entry], *, baseline: str, n_train: int) -> Leaderboard:
    """Returns the leaderboard of `entries`, ranked by score. Speed-ups are relative to `baseline`; `n_train` images are
    an epoch (0 if not known). Failed and refused trials are not ranked. Epochs are as
    measured (`RunSummary.epoch_s`) if every ranked run saw a whole one, else n_train / samples_per_s for all. Raises
    ValueError for two entries with the same key, or without the baseline.
    """
    by_key = {entry.key: entry for entry in sorted(entries, key=lambda e: e.key)}
    if len(by_key) < len(entries):
        raise ValueError("two entries of the tournament have the same key")
    if baseline not in by_key:
        raise ValueError(f"the baseline {baseline!r} is not one of the tournament's entries")
    nodes = {
        key: {o.round: o.node for o in entry.outcomes if scoring.counts(o)}
        for key, entry in by_key.items()
    }
    runs = within_nodes({key: scoring.rounds_of(entry) for key, entry in by_key.items()}, nodes)
    ended = {key: _summaries(entry, runs[key]) for key, entry in by_key.items()}
    level = scoring.sure_level(max(map(len, runs.values())))
    steps = {key: _n_steps(runs[key], ended[key]) for key in by_key}
    few = {key: n for key, n in steps.items() if 0 < n < thresholds.MIN_STEPS}
    scores = {key: scoring.score(mine, key) for key, mine in runs.items()}
    scores |= {key: scoring.Score(scores[key].value, scoring.NO_SCORE.draws) for key in few}
    speeds = {
        key: scoring.throughput(mine, _weights(mine, ended[key]), key) for key, mine in runs.items()
    }
    ranked = [
        key
        for key, e in by_key.items()
        if e.status not in OUT_OF_THE_RACE and math.isfinite(scores[key].value)
    ]
    ranked.sort(key=lambda key: (-scores[key].value, key))
    caches = {key: e.page_cache for key, e in by_key.items()}
    bests = {caches[key]: key for key in reversed(ranked)}
    cut = {key for key, e in by_key.items() if e.status == "cut"}
    whole_epochs = all(_saw_whole_epochs(runs[key], ended[key]) for key in ranked)
    near: dict[str, float] = {}
    for cache in bests:
        near |= scoring.near_best({key: scores[key] for key in ranked if caches[key] == cache}, cut)

    def over(key: str, base: str) -> arrays.Interval:
        if key == base and runs[key]:
            return arrays.Interval(1.0, 1.0, 1.0)
        return scoring.ratio(scores[key], scores[base], level)

    def outcome(key: str, base: str) -> scoring.Comparison:
        """Returns how two settings compare, as both the rows and the recommendation say it."""
        first = bests.get(caches[key])
        other = base if key == first else key
        if caches[key] == caches[base] and first in (key, base) and near.get(other, 0.0) >= level:
            return "equal"  # a setting that may be recommended as within 5% of the fastest is never called "slower"
        return scoring.comparison(over(key, base))

    rows = []
    for key in (*ranked, *(key for key in by_key if key not in ranked)):
        gain = over(key, baseline)
        speed = speeds[key]
        first = bests.get(caches[key], "")
        if key in few:
            speed = arrays.Interval(speed.value, math.nan, math.nan)
        standing: Standing = (
            "" if key not in ranked else "fastest" if key == first else outcome(key, first)
        )
        epoch_s = n_train / speed.value if n_train else math.nan
        if whole_epochs and _saw_whole_epochs(runs[key], ended[key]):
            epoch_s = math.exp(_mean([math.log(s.epoch_s) for s in ended[key].values()]))
        row = LeaderboardRow(
            rank=ranked.index(first if standing == "equal" else key) + 1 if standing else None,
            entry=by_key[key],
            n_runs=len(runs[key]),
            n_steps=sum(s.n_steady_steps for s in ended[key].values()),
            samples_per_s=speed.value,
            low=speed.low,
            high=speed.high,
            speed_up=gain.value,
            speed_up_low=gain.low,
            speed_up_high=gain.high,
            against_baseline=""
            if key == baseline or math.isnan(gain.value)
            else outcome(key, baseline),
            epoch_s=epoch_s,
            epoch_low=epoch_s * speed.value / speed.high,
            epoch_high=epoch_s * speed.value / speed.low,
            gpu_mem_bytes=max(_known(ended[key], "gpu_mem_peak_bytes"), default=math.nan),
            gpu_util_pct=_mean(_known(ended[key], "gpu_util_pct_mean")),
            device_idle_frac=_mean(_known(ended[key], "device_idle_frac")),
            rss_bytes=max(_known(ended[key], "rss_peak_bytes"), default=math.nan),
            too_few=few.get(key),
            standing=standing,
            spoiled=scoring.spoiled(by_key[key]),
            near_best=near.get(key, math.nan),
            score=scoring.interval(scores[key].value, scores[key].draws, level),
            within_low=scoring.within_low(runs[key], key),
        )
        rows.append(row)
    best = bests.get(caches[baseline], ranked[0] if ranked else None)
    return Leaderboard(tuple(rows), baseline, best, n_train, level, whole_epochs)


Summaries = Mapping[int, RunSummary]
"""Round -> the summary of a run behind the figures, as far as it has ended."""


def _summaries(entry: Entry, runs: scoring.Rounds) -> Summaries:
    last = {o.round: o.summary for o in entry.outcomes if scoring.counts(o)}
    return {number: s for number, s in last.items() if number in runs and s is not None}


def _n_steps(runs: scoring.Rounds, ended: Summaries) -> int:
    """Returns the steady steps behind the figures; for a run without a summary at least one for each block."""
    return sum(
        ended[number].n_steady_steps if number in ended else len(runs[number]) for number in runs
    )


def _weights(runs: scoring.Rounds, ended: Summaries) -> dict[int, float]:
    steps = {number: float(s.n_steady_steps) for number, s in ended.items()}
    return steps if len(steps) == len(runs) and all(steps.values()) else dict.fromkeys(runs, 1.0)


def _saw_whole_epochs(runs: scoring.Rounds, ended: Summaries) -> bool:
    whole = all(s.n_epochs_measured and s.epoch_s > 0 for s in ended.values())
    return len(runs) > 0 and len(ended) == len(runs) and whole


def _known(ended: Summaries, name: str) -> list[float]:
    return [value for s in ended.values() if math.isfinite(value := float(getattr(s, name)))]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


@dataclass(frozen=True)
class ArticleLine:
    """A setting at all batch sizes."""

    name: str
    """The strategy, its workers and its page cache: "pt-memory, 2 workers, cold"."""
    cells: tuple[LeaderboardRow | None, ...]
    """In the order of the table's batch sizes; None where the setting was not part of the tournament."""


@dataclass(frozen=True)
class ArticleTable:
    """A table whose rows are settings and whose columns are batch sizes."""

    batch_sizes: tuple[int, ...]
    lines: tuple[ArticleLine, ...]


def article_table(board: Leaderboard) -> ArticleTable:
    """Returns the leaderboard as the article prints it, by the settings' best rank, unranked ones last."""
    batches = tuple(sorted({row.entry.batch_size for row in board.rows}))
    lines: dict[tuple[str, int | None, str], dict[int, LeaderboardRow]] = {}
    for row in board.rows:  # the ranked ones come first, by rank
        entry = row.entry
        lines.setdefault((entry.strategy, entry.workers, entry.page_cache), {})[
            entry.batch_size
        ] = row
    named = (
        (setting_in_words(next(iter(cells.values())).entry, batch=False), cells)
        for cells in lines.values()
    )
    return ArticleTable(
        batches, tuple(ArticleLine(name, tuple(map(cells.get, batches))) for name, cells in named)
    )
