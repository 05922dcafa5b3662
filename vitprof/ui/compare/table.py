"""The Compare page's table: numbers as numbers, so that a click on a header sorts by them; and the downloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from vitprof import formats
from vitprof.analysis.compare.comparison import Compared, against
from vitprof.analysis.verdict.wording import CLASSES
from vitprof.records import RunSummary
from vitprof.store import StoredRun
from vitprof.ui.findings import verdict_of
from vitprof.ui.profile.live import is_simulated_run

WIDTHS: dict[str, dict[str, Any]] = {
    "Run": {"pinned": True, "width": 130},
    "Samples/s": {"width": 90},
    "Speed-up (x)": {"width": 100},
    "Name": {"width": 220},
}
"""The run stays in sight while the rest is scrolled, and leaves room on a phone for two columns of numbers."""
NOT_AVAILABLE = "n/a"
CLOSE = 0.1
"""A speed-up this near to 1 is told in four digits: 1.00, and yet faster, is no answer."""
DIGITS = 3
"""Significant digits, as everywhere (`vitprof.formats`)."""


@dataclass(frozen=True)
class ComparisonRow:
    """What a row of the table is made of."""

    run: StoredRun
    summary: RunSummary
    gain: Compared


@dataclass(frozen=True)
class Column:
    """A column of the table: its header with the unit, what it tells, and its value for a row (NaN: not available)."""

    name: str
    help: str
    value: Callable[[ComparisonRow], str | float]
    format: str = "localized"
    exact: bool = False
    """Its value is rounded already."""
    always: bool = False
    """Also where no run has it."""


def _spread(row: ComparisonRow) -> float:
    s = row.summary
    half = (s.samples_per_s_high - s.samples_per_s_low) / 2
    return 100 * half / s.samples_per_s if s.samples_per_s > 0 else math.nan


def _range(row: ComparisonRow) -> str:
    gain = row.gain
    known = math.isfinite(gain.low) and math.isfinite(gain.high)
    if gain.relation == "baseline":
        return ""
    return f"{_digits(gain.low)} to {_digits(gain.high)}" if known else NOT_AVAILABLE


def _digits(ratio: float) -> str:
    return f"{ratio:.3f}" if abs(ratio - 1) < CLOSE else formats.number(ratio)


def _speed_up(row: ComparisonRow) -> float:
    ratio = row.gain.speed_up
    return round(ratio, 3) if abs(ratio - 1) < CLOSE else _rounded(ratio)


def _epoch_from(row: ComparisonRow) -> str:
    s = row.summary
    if not math.isfinite(s.epoch_s):
        return NOT_AVAILABLE
    return f"measured, n = {s.n_epochs_measured}" if s.n_epochs_measured else "extrapolated"


COLUMNS: tuple[Column, ...] = (
    Column("Run", "Number and strategy.", lambda r: f"{r.run.id}: {r.run.config.strategy}", always=True),
    Column("Samples/s", "Steady-state throughput.", lambda r: r.summary.samples_per_s, always=True),
    Column(
        "Speed-up (x)",
        "Throughput over the baseline's.",
        _speed_up,
        exact=True,
        always=True,
    ),
    Column(
        "vs baseline",
        "faster or slower where the two 95% intervals lie apart; a tie where they overlap, so the difference may be "
        "noise; unknown where an interval is missing.",
        lambda r: r.gain.relation,
        always=True,
    ),
    Column(
        "Verdict",
        f"Whether loading held the device up: {CLASSES}; the lower end of the 95% interval decides.",
        lambda r: verdict_of(r.run).kind + (", simulated" if is_simulated_run(r.run) else ""),
        always=True,
    ),
    Column("Name", "Of the run; History changes it.", lambda r: r.run.name, always=True),
    Column("95% range", "The speed-ups that both runs' 95% intervals allow.", _range),
    Column("± (%)", "Half of the 95% interval of the throughput, as a share of it.", _spread, "%.2f"),
    Column("Epoch (s)", "Training time of an epoch.", lambda r: r.summary.epoch_s),
    Column(
        "Epoch is",
        "Measured over n whole epochs, or extrapolated from the throughput.",
        _epoch_from,
    ),
    Column(
        "Data wait (%)",
        "Share of the steady time that the training loop was blocked in next(loader).",
        lambda r: 100 * r.summary.data_wait_frac,
        "%.1f",
    ),
    Column(
        "Device idle (%)",
        "Share of the steady time between steps in which the device computed nothing.",
        lambda r: 100 * r.summary.device_idle_frac,
        "%.1f",
    ),
    Column("Step, median (ms)", "Half of the steps took at most this.", lambda r: r.summary.step_ms_median),
    Column("Step, p95 (ms)", "95% of the steps took at most this.", lambda r: r.summary.step_ms_p95),
    Column("Steps", "Steady steps behind the figures.", lambda r: float(r.summary.n_steady_steps), "%d", exact=True),
    Column(
        "Accuracy (%)",
        "On the test set, at the last evaluation.",
        lambda r: 100 * r.summary.test_accuracy,
        "%.1f",
    ),
    Column(
        "Copied first (s)",
        "Time to copy the data to RAM disk or local disk before training; not part of the epoch.",
        lambda r: r.summary.stage_s if r.summary.stage_s > 0 else math.nan,
    ),
    Column("GPU-util (%)", "Mean of NVML's utilisation while training.", lambda r: r.summary.gpu_util_pct_mean, "%.0f"),
    Column("GPU memory (MiB)", "Highest device memory of the job.", lambda r: r.summary.gpu_mem_peak_bytes / 2**20),
    Column(
        "Memory (MiB)",
        "Highest resident memory of the job's processes.",
        lambda r: r.summary.rss_peak_bytes / 2**20,
    ),
)


def table(runs: Sequence[StoredRun], baseline: int | None) -> pd.DataFrame:
    """One row for each run, one column for each of `COLUMNS` that some run has a value for.

    Numbers are float64 with three significant digits, NaN where not available.
    """
    summaries = [run.summary or RunSummary() for run in runs]
    gains = against(summaries, baseline)
    rows = [ComparisonRow(run, s, gain) for run, s, gain in zip(runs, summaries, gains, strict=True)]
    data: dict[str, list[str] | list[float]] = {}
    for column in COLUMNS:
        values = [column.value(row) for row in rows]
        if any(isinstance(value, str) for value in values):
            if column.always or any(value not in ("", NOT_AVAILABLE) for value in values):
                data[column.name] = [str(value) for value in values]
        elif column.always or any(math.isfinite(float(value)) for value in values):
            data[column.name] = [float(value) if column.exact else _rounded(float(value)) for value in values]
    return pd.DataFrame(data)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else math.nan


def draw_table(runs: Sequence[StoredRun], baseline: int | None) -> None:
    frame = table(runs, baseline)
    configs = {
        c.name: st.column_config.TextColumn(c.name, help=c.help, **WIDTHS.get(c.name, {}))
        if pd.api.types.is_string_dtype(frame[c.name])
        else st.column_config.NumberColumn(c.name, help=c.help, format=c.format, **WIDTHS.get(c.name, {}))
        for c in COLUMNS
        if c.name in frame
    }
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height="content" if len(frame) <= 12 else 460,
        column_config=configs,
        placeholder=NOT_AVAILABLE,
        key="compare-table",
    )
    absent = [c.name.partition(" (")[0] for c in COLUMNS if c.name not in frame and not c.name.startswith("Copied")]
    hidden = f" Not available for these runs: {', '.join(absent)}." if absent else ""
    st.caption(f"A click on a header sorts by its numbers.{hidden}")
