"""The leaderboard of a tournament: each setting's throughput, and its speed-up over the baseline,
with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vitprof import formats
from vitprof.analysis import faster, faster_while_busy, thresholds
from vitprof.analysis.arrays import UNKNOWN, Interval
from vitprof.analysis.faster_while_busy import WHILE_BUSY, AtLeast
from vitprof.analysis.intervals import NORMAL_975
from vitprof.analysis.tournament import blocks
from vitprof.analysis.tournament.entries import OUT_OF_THE_RACE, Entry, setting_in_words
from vitprof.analysis.tournament.nodes import within_nodes
from vitprof.recording.columns import RunSummary

Standing = Literal["", "fastest"] | faster.Relation
NO_ROUND_COUNTS = "no round counts yet: other programs ran in each"
"""What is said of a tournament in place of its fastest setting."""


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
    against_baseline: Literal[""] | faster_while_busy.Outcome
    """What the interval of the speed-up says; where that is undecided, what the rounds show that other
    programs disturbed; "" for the baseline itself, and if either has no figure."""
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
    experiments); "" if not ranked. Until two settings have a round that counts nothing is the
    fastest: the first one is "undecided" too, unless it surely was faster than the baseline while
    other programs ran."""
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
    while_busy: AtLeast | None = None
    """How many times as fast as the baseline it was at least while other programs ran; None unless
    `against_baseline` is that."""

    @property
    def key(self) -> str:
        return self.entry.key


def runs_words(row: LeaderboardRow) -> str:
    if row.entry.n_made <= row.n_runs:
        return f"{row.n_runs}"
    return f"{row.n_runs} of {row.entry.n_made}"


def speed_up_words(row: LeaderboardRow) -> str:
    """Returns the speed-up over the baseline: "3.06x"; where it is a bound, "at least 1.87x"; ""
    without one."""
    if row.while_busy is not None:
        return row.while_busy.words
    return f"{formats.number(row.speed_up)}x" if math.isfinite(row.speed_up) else ""


def spoiled_words(row: LeaderboardRow) -> str:
    """Returns which rounds of a setting do not count, and why; "" if all do."""
    if not row.spoiled:
        return ""
    *others, last = map(str, row.spoiled)
    rounds = f"round {last}"
    if others:
        rounds = f"rounds {', '.join(others)} and {last}"
    cores = max(row.spoiled.values())
    return f"{rounds} not counted: other programs used {cores:.1f} CPU cores"


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

    @property
    def awaits_bound(self) -> bool:
        """Returns whether more rounds while other programs run are needed before it can be said how
        much faster than the baseline a setting was at least (`analysis.faster_while_busy`)."""
        base = self.row(self.baseline)
        if base is None or base.rank is None:
            return False
        of_base = blocks.whole_runs_of(base.entry)
        others = [row for row in self.rows if row.rank is not None and row is not base]
        return any(
            faster_while_busy.is_to_come(blocks.whole_runs_of(row.entry), of_base) for row in others
        )

    @property
    def fastest(self) -> LeaderboardRow | None:
        """Returns the row of `best`; None until settings were compared."""
        row = self.row(self.best or "")
        return row if row is not None and row.standing == "fastest" else None

    @property
    def why_no_fastest(self) -> str:
        """Returns why no setting is the fastest yet though several have run, in the middle of a
        sentence; "" where one is, or there is nothing to compare yet."""
        ranked = [row for row in self.rows if row.rank is not None]
        spoiled = any(row.spoiled for row in ranked)
        if self.fastest is not None or len(ranked) < 2 or not spoiled:
            return ""
        return NO_ROUND_COUNTS


Summaries = Mapping[int, RunSummary]
"""Round -> the summary of a run behind the figures, as far as it has ended."""


@dataclass(frozen=True)
class _Setting:
    """A setting with what was measured of it."""

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
    def page_cache(self) -> str:
        return self.entry.page_cache

    @property
    def in_the_race(self) -> bool:
        return self.entry.status not in OUT_OF_THE_RACE

    @property
    def is_ranked(self) -> bool:
        return self.in_the_race and math.isfinite(self.shown_per_s)

    @property
    def too_few(self) -> int | None:
        """Returns its steady steps if they are too few for an interval, else None. A run without a
        summary has at least one for each block."""
        n_steps = 0
        for number, run in self.rounds.items():
            summary = self.ended.get(number)
            n_steps += len(run.seconds) if summary is None else summary.n_steady_steps
        return n_steps if 0 < n_steps < thresholds.MIN_STEPS else None

    @property
    def saw_whole_epochs(self) -> bool:
        if not self.rounds or len(self.ended) < len(self.rounds):
            return False
        return all(s.n_epochs_measured and s.epoch_s > 0 for s in self.ended.values())

    @property
    def within_low(self) -> float:
        """Returns the lower end of the 95% interval from blocks alone, samples/s, without the noise
        between runs; NaN with too few blocks."""
        variances = [run.noise.variance for run in self.rounds.values()]
        if not variances or not all(map(math.isfinite, variances)):
            return math.nan
        error = math.sqrt(math.fsum(variances)) / len(variances)
        return faster.per_s(self.rounds) * math.exp(-NORMAL_975 * error)

    def known(self, name: str) -> list[float]:
        """Returns a figure of the summaries, where it is known."""
        values = (float(getattr(summary, name)) for summary in self.ended.values())
        return [value for value in values if math.isfinite(value)]


@dataclass(frozen=True)
class _Rivals:
    """The ranked settings of one page cache: cold and warm are different experiments."""

    first: str
    """Key of the fastest."""
    near: Mapping[str, faster.NearBest]
    """Key -> how sure it is that the setting is within 5% of the fastest."""


@dataclass(frozen=True)
class _Comparison:
    """What the settings of a tournament are compared by."""

    speeds: faster.Speeds
    ranked: tuple[str, ...]
    """Keys, the fastest first."""
    rivals: Mapping[str, _Rivals]
    """Page cache -> the settings with it, where one is ranked."""
    baseline: _Setting
    level: float
    """How sure an answer must be (`faster.sure_level`)."""
    whole_epochs: bool
    """Whether every ranked setting saw whole epochs."""
    n_train: int
    """Training images in an epoch; 0 where it is not known."""
    is_compared: bool
    """Whether two settings have a round that counts."""

    @property
    def best(self) -> str | None:
        """Returns the key of the fastest setting with the baseline's page cache, or of all if none with it
        is ranked; None if none is."""
        rivals = self.rivals.get(self.baseline.page_cache)
        if rivals is not None:
            return rivals.first
        return self.ranked[0] if self.ranked else None

    def speed(self, setting: _Setting) -> Interval:
        if setting.key not in self.speeds.by_key:
            return UNKNOWN
        return self.speeds.interval(setting.key)

    def speed_up(self, key: str, base: str) -> Interval:
        """Returns the speed of a setting over that of `base`."""
        by_key = self.speeds.by_key
        if key not in by_key or base not in by_key:
            return UNKNOWN
        if key == base:
            return Interval(1.0, 1.0, 1.0)
        return self.speeds.ratio(key, base)

    def near_best(self, setting: _Setting) -> faster.NearBest:
        rivals = self.rivals.get(setting.page_cache)
        if rivals is None:
            return faster.NearBest()
        return rivals.near.get(setting.key, faster.NearBest())

    def against_baseline(self, setting: _Setting, gain: Interval) -> Literal[""] | faster.Relation:
        """Returns what the speed-up `gain` over the baseline says; "" for the baseline itself, and where it
        is not known."""
        if setting.key == self.baseline.key or not math.isfinite(gain.value):
            return ""
        if self._is_as_fast_as_the_first(setting, self.baseline):
            return "equal"
        return faster.relation(gain)

    def while_busy(self, setting: _Setting) -> AtLeast | None:
        """Returns how many times as fast as the baseline a setting was at least, while other programs
        ran; None where that is not sure."""
        if not (setting.in_the_race and self.baseline.in_the_race):
            return None
        return faster_while_busy.at_least(
            blocks.whole_runs_of(setting.entry), blocks.whole_runs_of(self.baseline.entry)
        )

    def standing(self, setting: _Setting) -> Standing:
        """Returns how a setting compares with the fastest of its page cache; "" if it is not ranked."""
        if not setting.is_ranked:
            return ""
        first = self.rivals[setting.page_cache].first
        if setting.key == first:
            was_faster = self.is_compared or self.while_busy(setting) is not None
            return "fastest" if was_faster else "undecided"
        if self.near_best(setting).probability >= self.level:
            return "equal"
        return faster.relation(self.speed_up(setting.key, first))

    def _is_as_fast_as_the_first(self, one: _Setting, other: _Setting) -> bool:
        """Returns whether one of two settings is the fastest, and the other may be recommended as within 5%
        of it: that one is never called "slower", neither in a row nor in the recommendation."""
        rivals = self.rivals.get(one.page_cache)
        if rivals is None or one.page_cache != other.page_cache:
            return False
        if rivals.first == one.key:
            return self.near_best(other).probability >= self.level
        if rivals.first == other.key:
            return self.near_best(one).probability >= self.level
        return False

    def rank(self, setting: _Setting, standing: Standing) -> int | None:
        """Returns a setting's rank, from 1: that of the fastest, if it is equal to it."""
        if not standing:
            return None
        key = setting.key
        if standing == "equal":
            key = self.rivals[setting.page_cache].first
        return self.ranked.index(key) + 1

    def epoch_s(self, setting: _Setting, per_s: float) -> float:
        """Returns the seconds of an epoch: measured, where all settings can be compared by that."""
        if self.whole_epochs and setting.saw_whole_epochs:
            return math.exp(_mean([math.log(s.epoch_s) for s in setting.ended.values()]))
        return self.n_train / per_s if self.n_train else math.nan


def leaderboard(entries: Sequence[Entry], *, baseline: str, n_train: int) -> Leaderboard:
    """Returns the leaderboard of `entries`, ranked by samples/s, whatever their order.

    `baseline` is the key of the setting that speed-ups are relative to, `n_train` the number of
    training images in an epoch (0 if not known). Failed and refused trials keep their figures but
    are not ranked. An epoch's time is the measured one (`RunSummary.epoch_s`) if every ranked run
    saw a whole epoch, and n_train / samples_per_s for all otherwise: only measured epochs include
    the wait at their start. Raises ValueError for two entries with the same key, or if the baseline
    is not among them.
    """
    keys = [entry.key for entry in entries]
    if len(set(keys)) < len(keys):
        raise ValueError("two entries of the tournament have the same key")
    if baseline not in keys:
        raise ValueError(f"the baseline {baseline!r} is not one of the tournament's entries")
    settings = _settings(entries)
    compared = _compared(settings, baseline, n_train)
    place = {key: n for n, key in enumerate(compared.ranked)}
    rows = [_row(setting, compared) for setting in settings]
    # those that are not ranked come last, by key
    rows.sort(key=lambda row: place.get(row.key, len(place)))
    return Leaderboard(
        rows=tuple(rows),
        baseline=baseline,
        best=compared.best,
        n_train=n_train,
        level=compared.level,
        whole_epochs=compared.whole_epochs,
    )


def _settings(entries: Sequence[Entry]) -> list[_Setting]:
    """Returns what was measured of each entry, by key."""
    in_order = sorted(entries, key=lambda entry: entry.key)
    nodes = {}
    measured = {}
    for entry in in_order:
        nodes[entry.key] = {o.round: o.node for o in entry.outcomes if blocks.counts(o)}
        measured[entry.key] = blocks.rounds_of(entry)
    alike = within_nodes(measured, nodes)
    return [_setting(entry, alike[entry.key]) for entry in in_order]


def _setting(entry: Entry, rounds: faster.Rounds) -> _Setting:
    ended = {}
    for outcome in entry.outcomes:
        if blocks.counts(outcome) and outcome.round in rounds and outcome.summary is not None:
            ended[outcome.round] = outcome.summary
    shown = rounds or blocks.all_rounds_of(entry)
    return _Setting(entry, rounds, ended, faster.per_s(shown))


def _compared(settings: Sequence[_Setting], baseline: str, n_train: int) -> _Comparison:
    speeds = _speeds(settings)
    ranked = [setting for setting in settings if setting.is_ranked]
    # settings are in the order of their keys, which decides where speeds are the same
    ranked.sort(key=lambda setting: -speeds.by_key[setting.key].per_s)
    caches = dict.fromkeys(setting.page_cache for setting in ranked)
    rivals = {}
    for cache in caches:
        rivals[cache] = _rivals([s for s in ranked if s.page_cache == cache], speeds)
    n_rounds = max(len(setting.rounds) for setting in settings)
    return _Comparison(
        speeds=speeds,
        ranked=tuple(setting.key for setting in ranked),
        rivals=rivals,
        baseline=next(setting for setting in settings if setting.key == baseline),
        level=faster.sure_level(n_rounds),
        whole_epochs=all(setting.saw_whole_epochs for setting in ranked),
        n_train=n_train,
        is_compared=sum(bool(setting.rounds) for setting in ranked) > 1,
    )


def _rivals(alike: Sequence[_Setting], speeds: faster.Speeds) -> _Rivals:
    """Returns the ranked settings `alike` of one page cache, the fastest first, compared."""
    keys = [setting.key for setting in alike]
    cut = {setting.key for setting in alike if setting.entry.status == "cut"}
    return _Rivals(keys[0], speeds.near_best(keys, cut))


def _row(setting: _Setting, compared: _Comparison) -> LeaderboardRow:
    speed = compared.speed(setting)
    gain = compared.speed_up(setting.key, compared.baseline.key)
    standing = compared.standing(setting)
    near = compared.near_best(setting)
    epoch_s = compared.epoch_s(setting, speed.value)
    against: Literal[""] | faster_while_busy.Outcome = compared.against_baseline(setting, gain)
    while_busy = compared.while_busy(setting) if against == "undecided" else None
    if while_busy is not None:
        against = WHILE_BUSY
    return LeaderboardRow(
        rank=compared.rank(setting, standing),
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
        while_busy=while_busy,
    )


def _speeds(settings: Sequence[_Setting]) -> faster.Speeds:
    """Returns the speeds of all settings that have a figure. Those that failed are not in the model
    of the others."""
    in_the_race = faster.speeds({s.key: s.rounds for s in settings if s.in_the_race})
    by_key = {}
    for setting in settings:
        model = in_the_race
        if not setting.in_the_race:
            model = faster.speeds({setting.key: setting.rounds})
        speed = _speed(setting, model.by_key.get(setting.key))
        if speed is not None:
            by_key[setting.key] = speed
    return faster.Speeds(by_key)


def _speed(setting: _Setting, in_model: faster.Speed | None) -> faster.Speed | None:
    """Returns the speed of a setting, by the model if that has it; None without a figure."""
    if in_model is None:
        if not math.isfinite(setting.shown_per_s):
            return None
        return faster.Speed.without_interval(setting.shown_per_s)
    if setting.too_few is not None:
        return faster.Speed.without_interval(in_model.per_s)
    return in_model


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
