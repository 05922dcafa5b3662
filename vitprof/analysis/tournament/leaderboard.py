"""The leaderboard of a tournament: each setting's throughput, and its speed-up over the baseline,
with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vitprof.analysis import faster, thresholds
from vitprof.analysis.arrays import UNKNOWN, Interval
from vitprof.analysis.intervals import NORMAL_975
from vitprof.analysis.tournament import blocks
from vitprof.analysis.tournament.entries import OUT_OF_THE_RACE, Entry, setting_in_words
from vitprof.analysis.tournament.nodes import within_nodes
from vitprof.recording.columns import RunSummary

Standing = Literal["", "fastest"] | faster.Relation


@dataclass(frozen=True)
class LeaderboardRow:
    """A row of the leaderboard.

    Intervals are at `faster.sure_level`: over all looks at the tournament together they hold with
    95%.
    """

    rank: int | None
    """From 1; settings equal to the fastest share its rank. None if there is nothing to rank: no
    figures yet, failed or refused."""
    entry: Entry
    n_runs: int
    """Runs behind the figures; `Entry.n_made` counts all runs."""
    n_steps: int
    """Steady steps of those runs that have ended, together."""
    samples_per_s: float
    """All samples over all undisturbed time of the rounds that count (`analysis.faster`). Settings
    are ranked by it. Where other programs disturbed all of it: over all time, without an interval.
    NaN without figures, as is all that follows."""
    low: float
    """Lower end of its interval; NaN if the noise between runs is not known, as after one run."""
    high: float
    """Upper end of that interval."""
    speed_up: float
    """`samples_per_s` over that of the baseline; 1 for the baseline itself."""
    speed_up_low: float
    """Lower end of its interval. Rounds in which both ran are compared within them."""
    speed_up_high: float
    """Upper end of that interval."""
    against_baseline: Literal[""] | faster.Relation
    """What the interval of the speed-up says; "" for the baseline itself, and if either has no
    figure."""
    epoch_s: float
    """Seconds for an epoch, measured or extrapolated (`leaderboard.leaderboard`)."""
    epoch_low: float
    epoch_high: float
    gpu_mem_bytes: float
    """Highest device memory of any run: NVML's figure, or what PyTorch reserved if NVML has
    none."""
    gpu_util_pct: float
    device_idle_frac: float
    """Mean share of the steady time that the device did not compute."""
    rss_bytes: float
    too_few: int | None = None
    """Its steady steps if they are fewer than `MIN_STEPS`, too few for an interval; else None."""
    standing: Standing = ""
    """Comparison with the fastest setting of the same page cache (cold and warm are different
    experiments); "" if not ranked."""
    spoiled: Mapping[int, float] = field(default_factory=dict)
    """Rounds that do not count -> the CPU cores that other programs used then
    (`blocks.spoiled`)."""
    near_best: float = math.nan
    """Probability that no setting of the same page cache is faster by more than 5%; NaN while the
    noise of a rival is not known."""
    behind: bool = False
    """Whether another setting of the same page cache is surely faster by more than 5%: no more
    rounds are needed."""
    within_low: float = math.nan
    """Lower end of the interval from blocks within its runs, samples/s; known after one round
    too."""

    @property
    def key(self) -> str:
        return self.entry.key


def runs_words(row: LeaderboardRow) -> str:
    if row.entry.n_made <= row.n_runs:
        return f"{row.n_runs}"
    return f"{row.n_runs} of {row.entry.n_made}"


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
    """Key of the fastest setting with the baseline's page cache, or of all if none with it is
    ranked; None if none is."""
    n_train: int
    """Training images in an epoch; 0 where it is not known."""
    level: float
    """How sure an answer must be after the rounds so far (`faster.sure_level`)."""
    whole_epochs: bool
    """Whether the times of epochs were measured: every run behind a rank saw a whole one."""

    def row(self, key: str) -> LeaderboardRow | None:
        """Returns the row of this setting; None if it has none."""
        return next((row for row in self.rows if row.key == key), None)


Summaries = Mapping[int, RunSummary]
"""Round -> the summary of a run behind the figures, as far as it has ended."""


@dataclass(frozen=True)
class _Setting:
    """A setting with what its row is made of."""

    entry: Entry
    rounds: faster.Rounds
    """Its undisturbed blocks; empty where there are none."""
    ended: Summaries
    shown_per_s: float
    """What to show where `rounds` is empty: over all time, disturbed or not; NaN without any."""

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def n_steps(self) -> int:
        """Returns the steady steps behind the figures; for a run without a summary at least one for
        each block."""
        steps = 0
        for number, run in self.rounds.items():
            summary = self.ended.get(number)
            steps += len(run.seconds) if summary is None else summary.n_steady_steps
        return steps

    @property
    def too_few(self) -> int | None:
        return self.n_steps if 0 < self.n_steps < thresholds.MIN_STEPS else None

    @property
    def saw_whole_epochs(self) -> bool:
        whole = all(s.n_epochs_measured and s.epoch_s > 0 for s in self.ended.values())
        return len(self.rounds) > 0 and len(self.ended) == len(self.rounds) and whole

    @property
    def is_ranked(self) -> bool:
        return self.entry.status not in OUT_OF_THE_RACE and math.isfinite(self.shown_per_s)

    def known(self, name: str) -> list[float]:
        """Returns a figure of the summaries, where it is known."""
        values = (float(getattr(summary, name)) for summary in self.ended.values())
        return [value for value in values if math.isfinite(value)]

    @property
    def within_low(self) -> float:
        """Returns the lower end of the 95% interval from blocks alone, samples/s, without the noise
        between runs; NaN with too few blocks."""
        variances = [run.noise.variance for run in self.rounds.values()]
        if not variances or not all(map(math.isfinite, variances)):
            return math.nan
        error = math.sqrt(math.fsum(variances)) / len(variances)
        return faster.per_s(self.rounds) * math.exp(-NORMAL_975 * error)


def leaderboard(entries: Sequence[Entry], *, baseline: str, n_train: int) -> Leaderboard:
    """Returns the leaderboard of `entries`, ranked by samples/s, whatever their order.

    `baseline` is the key of the setting that speed-ups are relative to, `n_train` the number of
    training images in an epoch (0 if not known). Failed and refused trials keep their figures but
    are not ranked. An epoch's time is the measured one (`RunSummary.epoch_s`) if every ranked run
    saw a whole epoch, and n_train / samples_per_s for all otherwise: only measured epochs include
    the wait at their start. Raises ValueError for two entries with the same key, or if the baseline
    is not among them.
    """
    settings = _settings(entries)
    if len(settings) < len(entries):
        raise ValueError("two entries of the tournament have the same key")
    if baseline not in settings:
        raise ValueError(f"the baseline {baseline!r} is not one of the tournament's entries")
    return _Race(settings, baseline, n_train).board()


def _settings(entries: Sequence[Entry]) -> dict[str, _Setting]:
    by_key = {entry.key: entry for entry in sorted(entries, key=lambda e: e.key)}
    nodes = {
        key: {o.round: o.node for o in entry.outcomes if blocks.counts(o)}
        for key, entry in by_key.items()
    }
    rounds = within_nodes({key: blocks.rounds_of(e) for key, e in by_key.items()}, nodes)
    settings = {}
    for key, entry in by_key.items():
        last = {o.round: o.summary for o in entry.outcomes if blocks.counts(o)}
        ended = {n: s for n, s in last.items() if n in rounds[key] and s is not None}
        shown = rounds[key] or blocks.all_rounds_of(entry)
        settings[key] = _Setting(entry, rounds[key], ended, faster.per_s(shown))
    return settings


class _Race:
    """The settings of a tournament, compared with each other."""

    def __init__(self, settings: Mapping[str, _Setting], baseline: str, n_train: int) -> None:
        self._settings = settings
        self._baseline = baseline
        self._n_train = n_train
        self._level = faster.sure_level(max(len(s.rounds) for s in settings.values()))
        self._speeds = _speeds(settings)
        ranked = [key for key, setting in settings.items() if setting.is_ranked]
        self._ranked = sorted(ranked, key=lambda key: (-self._speeds.by_key[key].per_s, key))
        self._first_of = {self._cache(key): key for key in reversed(self._ranked)}
        """Page cache -> the fastest setting with it."""
        self._whole_epochs = all(settings[key].saw_whole_epochs for key in self._ranked)
        self._standings: dict[str, faster.NearBest] = {}
        for cache in self._first_of:
            alike = [key for key in self._ranked if self._cache(key) == cache]
            ended = {key for key in alike if settings[key].entry.status == "cut"}
            self._standings |= self._speeds.near_best(alike, ended)

    def board(self) -> Leaderboard:
        unranked = [key for key in self._settings if key not in self._ranked]
        rows = tuple(self._row(key) for key in (*self._ranked, *unranked))
        best = self._first_of.get(
            self._cache(self._baseline), self._ranked[0] if self._ranked else None
        )
        return Leaderboard(
            rows, self._baseline, best, self._n_train, self._level, self._whole_epochs
        )

    def _cache(self, key: str) -> str:
        return self._settings[key].entry.page_cache

    def _row(self, key: str) -> LeaderboardRow:
        setting = self._settings[key]
        speed = self._speeds.interval(key) if key in self._speeds.by_key else UNKNOWN
        gain = self._over(key, self._baseline)
        against: Literal[""] | faster.Relation = ""
        if key != self._baseline and math.isfinite(gain.value):
            against = self._relation(key, self._baseline)
        standing = self._standing(key)
        epoch_s = self._epoch_s(setting, speed.value)
        near = self._standings.get(key, faster.NearBest())
        return LeaderboardRow(
            rank=self._rank(key, standing),
            entry=setting.entry,
            n_runs=len(setting.rounds),
            n_steps=sum(summary.n_steady_steps for summary in setting.ended.values()),
            samples_per_s=speed.value,
            low=speed.low,
            high=speed.high,
            speed_up=gain.value,
            speed_up_low=gain.low,
            speed_up_high=gain.high,
            against_baseline=against,
            epoch_s=epoch_s,
            epoch_low=epoch_s * speed.value / speed.high,
            epoch_high=epoch_s * speed.value / speed.low,
            gpu_mem_bytes=max(setting.known("gpu_mem_peak_bytes"), default=math.nan),
            gpu_util_pct=_mean(setting.known("gpu_util_pct_mean")),
            device_idle_frac=_mean(setting.known("device_idle_frac")),
            rss_bytes=max(setting.known("rss_peak_bytes"), default=math.nan),
            too_few=setting.too_few,
            standing=standing,
            spoiled=blocks.spoiled(setting.entry),
            near_best=near.probability,
            behind=near.behind,
            within_low=setting.within_low,
        )

    def _over(self, key: str, base: str) -> Interval:
        by_key = self._speeds.by_key
        if key not in by_key or base not in by_key:
            return UNKNOWN
        return Interval(1.0, 1.0, 1.0) if key == base else self._speeds.ratio(key, base)

    def _relation(self, key: str, base: str) -> faster.Relation:
        """Returns how two settings compare, as both the rows and the recommendation say it: a
        setting that may be recommended as within 5% of the fastest is never called "slower"."""
        first = self._first_of.get(self._cache(key))
        other = base if key == first else key
        of_the_first = self._cache(key) == self._cache(base) and first in (key, base)
        near = self._standings.get(other, faster.NearBest())
        if of_the_first and near.probability >= self._level:
            return "equal"
        return faster.relation(self._over(key, base))

    def _standing(self, key: str) -> Standing:
        if key not in self._ranked:
            return ""
        first = self._first_of[self._cache(key)]
        return "fastest" if key == first else self._relation(key, first)

    def _rank(self, key: str, standing: Standing) -> int | None:
        if not standing:
            return None
        shares = self._first_of[self._cache(key)] if standing == "equal" else key
        return self._ranked.index(shares) + 1

    def _epoch_s(self, setting: _Setting, per_s: float) -> float:
        if self._whole_epochs and setting.saw_whole_epochs:
            return math.exp(_mean([math.log(s.epoch_s) for s in setting.ended.values()]))
        return self._n_train / per_s if self._n_train else math.nan


def _speeds(settings: Mapping[str, _Setting]) -> faster.Speeds:
    """Returns the speeds of all settings that have a figure. Those that failed are not in the model
    of the others."""
    in_race = {
        key: s.rounds for key, s in settings.items() if s.entry.status not in OUT_OF_THE_RACE
    }
    by_key = dict(faster.speeds(in_race).by_key)
    for key, setting in settings.items():
        if key not in in_race:
            by_key |= faster.speeds({key: setting.rounds}).by_key
        if key not in by_key and math.isfinite(setting.shown_per_s):
            by_key[key] = faster.Speed.without_interval(setting.shown_per_s)
        if key in by_key and setting.too_few is not None:
            by_key[key] = faster.Speed.without_interval(by_key[key].per_s)
    return faster.Speeds(by_key)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


@dataclass(frozen=True)
class ArticleLine:
    """A setting at all batch sizes."""

    name: str
    """The strategy, its workers and its page cache: "pt-memory, 2 workers, cold"."""
    cells: tuple[LeaderboardRow | None, ...]
    """In the order of the table's batch sizes; None where the setting was not part of the
    tournament."""


@dataclass(frozen=True)
class ArticleTable:
    """A table whose rows are settings and whose columns are batch sizes."""

    batch_sizes: tuple[int, ...]
    lines: tuple[ArticleLine, ...]


def article_table(board: Leaderboard) -> ArticleTable:
    """Returns the leaderboard as the article prints it, by the settings' best rank, unranked ones
    last."""
    batches = tuple(sorted({row.entry.batch_size for row in board.rows}))
    by_name: dict[str, dict[int, LeaderboardRow]] = {}
    for row in board.rows:  # the ranked ones come first, by rank
        name = setting_in_words(row.entry, batch=False)
        by_name.setdefault(name, {})[row.entry.batch_size] = row
    lines = []
    for name, cells in by_name.items():
        lines.append(ArticleLine(name, tuple(map(cells.get, batches))))
    return ArticleTable(batches, tuple(lines))
