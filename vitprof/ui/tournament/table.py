"""The leaderboard, and the article's table as a data frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from vitprof.analysis.tournament import ArticleCell, ArticleTable, Leaderboard, LeaderboardRow, setting_in_words
from vitprof.ui import tables
from vitprof.ui.tables import Column, rounded

MIB = 2.0**20
STATUSES = {
    "waiting": "waiting",
    "running": "waiting",
    "done": "done",
    "failed": "failed",
    "refused": "not possible here",
    "cut": "cut short",
    "stopped": "stopped",
}
"""A trial's status in words."""
TOO_FEW = "too few steps"


def standing(row: LeaderboardRow, board: Leaderboard) -> str:
    """Returns how a setting compares with the baseline, in a word."""
    if row.key == board.baseline:
        return "baseline"
    if not math.isfinite(row.speed_up):
        return ""
    return TOO_FEW if row.too_few is not None else row.against_baseline


def status(row: LeaderboardRow) -> str:
    """Returns what became of a setting, in words."""
    if row.entry.status in ("waiting", "running"):  # which one runs, the progress bar says
        return f"{row.n_runs} {'round' if row.n_runs == 1 else 'rounds'} done" if row.n_runs else "waiting"
    return STATUSES[row.entry.status]


def _against_best(row: LeaderboardRow, board: Leaderboard) -> str:
    if row.rank is None:
        return ""
    return TOO_FEW if row.too_few is not None else row.standing


def _unless_baseline(name: str) -> Callable[[LeaderboardRow, Leaderboard], float]:
    return lambda row, board: math.nan if row.key == board.baseline else float(getattr(row, name))


COLUMNS: tuple[Column, ...] = (
    Column(
        "Setting",
        "Strategy, batch size, workers, page cache.",
        lambda r, b: setting_in_words(r.entry),
        always=True,
        pinned=True,
    ),
    Column(
        "Samples/s",
        "Steady-state throughput: samples over time of the rounds that count, each weighing alike.",
        lambda r, b: r.samples_per_s,
        always=True,
    ),
    Column("from", "Lower end of its 95% interval, samples/s.", lambda r, b: r.low),
    Column("to", "Upper end of its 95% interval, samples/s.", lambda r, b: r.high),
    Column(
        "Speed-up (x)",
        "The score over the baseline's. A score is the throughput of the part of the runs that other programs did not "
        "slow down (docs/tournament.md), so this can differ from the ratio of the throughputs.",
        lambda r, b: r.speed_up,
        "%.2f",
    ),
    Column("at least (x)", "Lower end of its 95% interval.", _unless_baseline("speed_up_low"), "%.2f"),
    Column("at most (x)", "Upper end of its 95% interval.", _unless_baseline("speed_up_high"), "%.2f"),
    Column(
        "Against baseline",
        "faster or slower: the interval of the speed-up leaves 1 out; equal: all of it is within 5% of 1; "
        "undecided: more rounds would tell.",
        standing,
        always=True,
    ),
    Column("Status", "What became of it; the reason stands below the table.", lambda r, b: status(r), always=True),
    Column(
        "Against the fastest",
        "equal: it is known to be as fast as the fastest, within 5%; undecided: it can be faster or slower.",
        _against_best,
    ),
    Column("Epoch (s)", "Time of a pass over the training set.", lambda r, b: r.epoch_s),
    Column("GPU-util (%)", "Mean of NVML's utilisation.", lambda r, b: r.gpu_util_pct, "%.0f"),
    Column("GPU memory (MiB)", "Highest device memory of any run.", lambda r, b: r.gpu_mem_bytes / MIB),
    Column(
        "Device idle (%)",
        "Share of the steady time in which the device computed nothing.",
        lambda r, b: 100 * r.device_idle_frac,
        "%.1f",
    ),
    Column("Memory (MiB)", "Highest resident memory of the job's processes.", lambda r, b: r.rss_bytes / MIB),
    Column(
        "Kept in RAM (MiB)",
        "RAM disk, and samples kept in memory.",
        lambda r, b: r.entry.ram_bytes / MIB if r.entry.ram_bytes else math.nan,
    ),
    Column(
        "Disk (MiB)",
        "Room of its prepared storage and copy.",
        lambda r, b: r.entry.disk_bytes / MIB if r.entry.disk_bytes else math.nan,
    ),
    Column("Preparation (s)", "Time to make its storage, once; 0: none is needed.", lambda r, b: r.entry.prepare_s),
    Column("Rank", "By throughput.", lambda r, b: math.nan if r.rank is None else float(r.rank), "%d", exact=True),
    Column("Runs", "Runs behind the figures.", lambda r, b: float(r.n_runs), "%d", exact=True, always=True),
    Column(
        "Steps",
        "Steady steps behind the figures, of runs that have ended.",
        lambda r, b: float(r.n_steps),
        "%d",
        exact=True,
    ),
)


LIVE = ("Setting", "Samples/s", "from", "to", "Speed-up (x)", "Against baseline", "Status", "Runs")
"""The columns while it goes on: the table is sent anew after each run."""


def draw_table(board: Leaderboard, *, live: bool) -> None:
    """Draws the leaderboard: one row for each setting."""
    columns = [column for column in COLUMNS if not live or column.name in LIVE]
    shown = tables.frame(columns, [(row, board) for row in board.rows])
    tables.draw(columns, shown, key="tournament-table", placeholder="–")


@dataclass(frozen=True)
class Measure:
    """One of the article's three figures."""

    name: str
    unit: str
    value: Callable[[ArticleCell], float]


MEASURES = (
    Measure("Epoch", "s", lambda c: c.epoch_s),
    Measure("GPU memory", "MiB", lambda c: c.gpu_mem_bytes / MIB),
    Measure("GPU-util", "%", lambda c: c.gpu_util_pct),
)


def article_frame(found: ArticleTable) -> pd.DataFrame:
    """Returns the article's table: a row for each setting and, for each figure, a column for each batch size. A figure
    that no cell has is left out.
    """
    data: dict[str, Sequence[str] | Sequence[float]] = {"Setting": [line.name for line in found.lines]}
    for measure in MEASURES:
        columns = {
            f"{measure.name} ({measure.unit}), batch {batch:,}": [
                math.nan if line.cells[i] is None else rounded(measure.value(line.cells[i]))  # type: ignore[arg-type]
                for line in found.lines
            ]
            for i, batch in enumerate(found.batch_sizes)
        }
        if any(math.isfinite(v) for values in columns.values() for v in values):
            data |= columns
    return pd.DataFrame(data)
