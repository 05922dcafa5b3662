"""What a leaderboard says of each setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vitprof.analysis.tournament.entries import Entry
from vitprof.analysis.tournament.scores import Comparison

Standing = Literal["", "fastest"] | Comparison


@dataclass(frozen=True)
class LeaderboardRow:
    """A line of the leaderboard."""

    rank: int | None
    """From 1, what is equal to the fastest shares its rank; None where there is nothing to rank: no figures yet, failed
    or refused."""
    entry: Entry
    n_runs: int
    """Runs behind the figures; `Entry.n_made` are all that were made."""
    n_steps: int
    """Steady steps of these runs together, of those that have ended."""
    samples_per_s: float
    """All samples over all time of the rounds that count; NaN without figures, as all that follows."""
    low: float
    """Lower end of its 95% interval; NaN where it is not known how much runs differ: after one run."""
    high: float
    """Upper end."""
    speed_up: float
    """Its score (`analysis.tournament.scores`) over the baseline's, which other programs disturb less than the
    throughput; 1 for the baseline itself."""
    speed_up_low: float
    speed_up_high: float
    against_baseline: Literal[""] | Comparison
    """What the interval of the speed-up says; "" for the baseline itself and without a figure of both."""
    epoch_s: float
    epoch_low: float
    epoch_high: float
    gpu_mem_bytes: float
    """Highest device memory of any run: NVML's figure, or what PyTorch reserved where NVML does not tell."""
    gpu_util_pct: float
    """Mean of NVML's utilisation over the runs."""
    device_idle_frac: float
    """Mean share of the steady time that the device did not compute."""
    rss_bytes: float
    """Highest resident memory of any run's processes."""
    too_few: int | None = None
    """Its steady steps where they are fewer than `MIN_STEPS`: too few for an interval; else None."""
    standing: Standing = ""
    """Against the fastest of its page cache, whose states are different experiments; "" for what is not ranked."""
    spoiled: Mapping[int, float] = field(default_factory=dict)
    """Rounds that do not count, and the CPU cores that other programs used then (`scores.spoiled`)."""
    near_best: float = math.nan
    """Probability that none of its page cache is faster by more than 5%; NaN where the noise of one is not known."""
    score: float = math.nan
    """samples/s that a fifth of its blocks reach: what speed-ups and ranks compare (`analysis.tournament.scores`)."""
    within_low: float = math.nan
    """Lower end of the interval that blocks within its runs give, samples/s; known after one round too."""

    @property
    def key(self) -> str:
        return self.entry.key


def runs_words(row: LeaderboardRow) -> str:
    """Returns how many runs of a setting count, and of how many that were made where not all do: "2 of 3"."""
    return f"{row.n_runs}" if row.entry.n_made <= row.n_runs else f"{row.n_runs} of {row.entry.n_made}"


def spoiled_words(row: LeaderboardRow) -> str:
    """Returns which rounds of a setting do not count, and why; "" if all do."""
    if not row.spoiled:
        return ""
    *others, last = map(str, row.spoiled)
    rounds = f"{', '.join(others)} and {last}" if others else last
    n = "rounds" if others else "round"
    return f"{n} {rounds} not counted: other programs used {max(row.spoiled.values()):.1f} CPU cores"


@dataclass(frozen=True)
class Leaderboard:
    """All settings, the ranked ones first, by rank."""

    rows: tuple[LeaderboardRow, ...]
    baseline: str
    """Key of the setting that the speed-ups are over."""
    best: str | None
    """Key of the fastest setting with the baseline's page cache, of all if none has it; None with nothing ranked."""
    n_train: int
    """Training images of an epoch; 0 where it is not known."""
    level: float
    """How sure an answer must be (`scores.sure_level`) after the rounds that there are."""

    def row(self, key: str) -> LeaderboardRow | None:
        """Returns the line of this setting."""
        return next((row for row in self.rows if row.key == key), None)
