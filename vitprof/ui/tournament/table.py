"""The leaderboard and the article's table as data frames: numbers as numbers, so that a click on a header sorts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from vitprof.analysis.tournament import ArticleCell, ArticleTable, Leaderboard, LeaderboardRow, setting_in_words

MIB = 2.0**20
DIGITS = 3
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
TOO_FEW, NOT_KNOWN = "too few steps", "not known"
ROW_PX, MOST_PX = 35, 460


@dataclass(frozen=True)
class Column:
    """A column: its header with the unit, what it tells, and its value for a row (NaN: not available)."""

    name: str
    help: str
    value: Callable[[LeaderboardRow, Leaderboard], str | float]
    format: str = "localized"
    always: bool = False
    """Also where no row has it."""


def standing(row: LeaderboardRow, board: Leaderboard) -> str:
    """How a setting compares with the baseline, in a word."""
    if row.key == board.baseline:
        return "baseline"
    if not math.isfinite(row.speed_up):
        return ""
    if row.untold:
        return NOT_KNOWN if row.too_few is None else TOO_FEW
    if row.tie:
        return "tie"
    return "faster" if row.speed_up > 1 else "slower"


def status(row: LeaderboardRow) -> str:
    """What became of a setting, in words."""
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
        "Setting", "Strategy, batch size, workers, page cache.", lambda r, b: setting_in_words(r.entry), always=True
    ),
    Column("Samples/s", "Steady-state throughput, mean over the rounds.", lambda r, b: r.samples_per_s, always=True),
    Column("from", "Lower end of its 95% interval, samples/s.", lambda r, b: r.low),
    Column("to", "Upper end of its 95% interval, samples/s.", lambda r, b: r.high),
    Column("Speed-up (x)", "Throughput over the baseline's, paired by round.", lambda r, b: r.speed_up, "%.2f"),
    Column("at least (x)", "Lower end of its 95% interval.", _unless_baseline("speed_up_low"), "%.2f"),
    Column("at most (x)", "Upper end of its 95% interval.", _unless_baseline("speed_up_high"), "%.2f"),
    Column(
        "Against baseline",
        "faster or slower where the 95% interval of the speed-up leaves 1 out; else a tie: it may be chance.",
        standing,
        always=True,
    ),
    Column("Status", "What became of it; the reason stands below the table.", lambda r, b: status(r), always=True),
    Column("Against the fastest", "tie: it cannot be told from the fastest.", _against_best),
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
    Column("Rank", "By throughput.", lambda r, b: math.nan if r.rank is None else float(r.rank), "%d"),
    Column("Runs", "Runs behind the figures.", lambda r, b: float(r.n_runs), "%d", always=True),
    Column("Steps", "Steady steps behind the figures, of runs that have ended.", lambda r, b: float(r.n_steps), "%d"),
)


LIVE = ("Setting", "Samples/s", "from", "to", "Speed-up (x)", "Against baseline", "Status", "Runs")
"""The columns while it goes on: the table is sent anew after each run."""


def table(board: Leaderboard, *, live: bool = False) -> pd.DataFrame:
    """One row for each setting, one column for each of `COLUMNS` that some setting has; numbers are float64."""
    data: dict[str, list[str] | list[float]] = {}
    for column in COLUMNS:
        if live and column.name not in LIVE:
            continue
        values = [column.value(row, board) for row in board.rows]
        if any(isinstance(value, str) for value in values):
            if column.always or any(values):
                data[column.name] = [str(value) for value in values]
        elif column.always or any(math.isfinite(float(value)) for value in values):
            data[column.name] = [rounded(float(value)) for value in values]
    return pd.DataFrame(data)


def rounded(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else math.nan


def height_of(rows: int) -> int:
    """Of a table, so that a short one is shown whole."""
    return min((rows + 1) * ROW_PX + 3, MOST_PX)


def draw_table(board: Leaderboard, *, live: bool) -> None:
    """The leaderboard."""
    frame = table(board, live=live)
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height=height_of(len(frame)),
        key="tournament-table",
        placeholder="–",
        column_config={
            c.name: st.column_config.TextColumn(c.name, help=c.help, pinned=c.name == "Setting")
            if pd.api.types.is_string_dtype(frame[c.name])
            else st.column_config.NumberColumn(c.name, help=c.help, format=c.format)
            for c in COLUMNS
            if c.name in frame
        },
    )


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
    """Rows are settings; for each figure, one column for each batch size. A figure that no cell has is left out."""
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
