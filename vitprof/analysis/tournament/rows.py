"""What a leaderboard says of each setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vitprof import formats
from vitprof.analysis.tournament.entries import Entry, setting_in_words
from vitprof.analysis.tournament.scores import Comparison

Standing = Literal["", "fastest"] | Comparison

UNEVEN_FRAC = 0.9
"""A throughput below this share of the score is explained, because its ratio to the baseline's is not the speed-up."""
UNEVEN_TOLD = 2
"""Settings for which that is explained, at most."""


@dataclass(frozen=True)
class LeaderboardRow:
    """A row of the leaderboard.

    Intervals are at `scores.sure_level`: over all looks at the tournament together they hold with 95%.
    """

    rank: int | None
    """From 1; settings equal to the fastest share its rank. None if there is nothing to rank: no figures yet, failed or
    refused."""
    entry: Entry
    n_runs: int
    """Runs behind the figures; `Entry.n_made` counts all runs."""
    n_steps: int
    """Steady steps of those runs that have ended, together."""
    samples_per_s: float
    """All samples over all time of the rounds that count; NaN without figures, as is all that follows."""
    low: float
    """Lower end of its interval; NaN if the noise between runs is not known, as after one run."""
    high: float
    """Upper end of its interval."""
    speed_up: float
    """Its score (`analysis.tournament.scores`), which other programs disturb less than the throughput, over the
    baseline's; 1 for the baseline itself."""
    speed_up_low: float
    speed_up_high: float
    against_baseline: Literal[""] | Comparison
    """What the interval of the speed-up says; "" for the baseline itself, and if either has no figure."""
    epoch_s: float
    """Seconds for an epoch, measured or extrapolated (`leaderboard.leaderboard`)."""
    epoch_low: float
    epoch_high: float
    gpu_mem_bytes: float
    """Highest device memory of any run: NVML's figure, or what PyTorch reserved if NVML has none."""
    gpu_util_pct: float
    """Mean of NVML's utilisation over the runs."""
    device_idle_frac: float
    """Mean share of the steady time that the device did not compute."""
    rss_bytes: float
    """Highest resident memory of any run's processes."""
    too_few: int | None = None
    """Its steady steps if they are fewer than `MIN_STEPS`, too few for an interval; else None."""
    standing: Standing = ""
    """Comparison with the fastest setting of the same page cache (cold and warm are different experiments); "" if not
    ranked."""
    spoiled: Mapping[int, float] = field(default_factory=dict)
    """Rounds that do not count -> the CPU cores that other programs used then (`scores.spoiled`)."""
    near_best: float = math.nan
    """Probability that no setting of the same page cache is faster by more than 5%; NaN while the noise of a rival is
    not known."""
    score: float = math.nan
    """samples/s that a fifth of its blocks reach, by which settings are ranked and compared
    (`analysis.tournament.scores`)."""
    within_low: float = math.nan
    """Lower end of the interval from blocks within its runs, samples/s; known after one round too."""

    @property
    def key(self) -> str:
        """Returns the key of its setting."""
        return self.entry.key


def runs_words(row: LeaderboardRow) -> str:
    """Returns how many runs of a setting count, and how many were made if that is more: "2 of 3"."""
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
    """A tournament's settings: the ranked ones first, by rank."""

    rows: tuple[LeaderboardRow, ...]
    baseline: str
    """Key of the setting that speed-ups are relative to."""
    best: str | None
    """Key of the fastest setting with the baseline's page cache, or of all if none with it is ranked; None if none
    is."""
    n_train: int
    """Training images in an epoch; 0 where it is not known."""
    level: float
    """How sure an answer must be after the rounds so far (`scores.sure_level`)."""

    def row(self, key: str) -> LeaderboardRow | None:
        """Returns the row of this setting; None if it has none."""
        return next((row for row in self.rows if row.key == key), None)


def uneven_words(board: Leaderboard) -> str:
    """Returns why a speed-up is not the ratio of two throughputs shown, for the settings where it clearly is not."""
    uneven = [row for row in board.rows if row.rank is not None and row.samples_per_s < UNEVEN_FRAC * row.score]
    if not uneven:
        return ""
    said = "; ".join(
        f"{setting_in_words(row.entry)} reached {formats.number(row.score, 'samples/s')} in its fastest fifth and "
        f"{formats.number(row.samples_per_s)} over all its time"
        for row in uneven[:UNEVEN_TOLD]
    )
    more = f"; {len(uneven) - UNEVEN_TOLD} more settings were as uneven" if len(uneven) > UNEVEN_TOLD else ""
    return f"Speed-ups and ranks compare the fastest fifth of the time, which is disturbed least: {said}{more}."
