"""The Compare page's table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from vitprof import formats
from vitprof.analysis.compare.comparison import Compared, against
from vitprof.analysis.timing.utilisation import sm_activity
from vitprof.analysis.verdict.wording import CLASSES
from vitprof.formats import NOT_AVAILABLE
from vitprof.recording.columns import RunSummary
from vitprof.store import StoredRun
from vitprof.ui import tables
from vitprof.ui.findings import verdict_of
from vitprof.ui.profile.live import is_simulated_run
from vitprof.ui.texts import escaped

MIB = 2.0**-20
CLOSE = 0.1
"""A speed-up this close to 1 is shown with three decimals: "1.00, faster" would contradict itself."""
UNTOLD = ("Copied", "GPU", "SM")
"""First words of columns that most runs have no value for, such as those without a GPU: not listed as missing."""


@dataclass(frozen=True)
class ComparisonRow:
    """The data of a row of the table."""

    run: StoredRun
    summary: RunSummary
    gain: Compared


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
    return round(ratio, 3) if abs(ratio - 1) < CLOSE else tables.rounded(ratio)


def _epoch_from(row: ComparisonRow) -> str:
    s = row.summary
    if not math.isfinite(s.epoch_s):
        return NOT_AVAILABLE
    return f"measured, n = {s.n_epochs_measured}" if s.n_epochs_measured else "extrapolated"


COLUMNS: tuple[tables.Column, ...] = (  # the run stays in sight, and leaves room on a phone for two columns of numbers
    tables.Column(
        "Run",
        "Number and strategy.",
        lambda r: f"{r.run.id}: {r.run.config.strategy}",
        always=True,
        pinned=True,
        width=130,
    ),
    tables.Column("Samples/s", "Steady-state throughput.", lambda r: r.summary.samples_per_s, always=True, width=90),
    tables.Column("Speed-up (x)", "Throughput over the baseline's.", _speed_up, exact=True, always=True, width=100),
    tables.Column(
        "vs baseline",
        "faster or slower where the two 95% intervals do not overlap; equal where the difference is surely below 5%; "
        "undecided where they overlap, so the difference may be noise; unknown where an interval is missing.",
        lambda r: r.gain.relation,
        always=True,
    ),
    tables.Column(
        "Verdict",
        f"Whether loading held the device up: {CLASSES}; the lower end of the 95% interval decides.",
        lambda r: verdict_of(r.run).kind + (", simulated" if is_simulated_run(r.run) else ""),
        always=True,
    ),
    tables.Column("Name", "Of the run; History changes it.", lambda r: r.run.name, always=True, width=220),
    tables.Column("95% range", "The speed-ups that both runs' 95% intervals allow.", _range),
    tables.Column("± (%)", "Half of the 95% interval of the throughput, as a share of it.", _spread, "%.2f"),
    tables.of_summary("Epoch (s)", "epoch_s"),
    tables.Column("Epoch is", "Measured over n whole epochs, or extrapolated from the throughput.", _epoch_from),
    tables.of_summary("Data wait (%)", "data_wait_frac", 100, "%.1f"),
    tables.of_summary("Device idle (%)", "device_idle_frac", 100, "%.1f"),
    tables.of_summary("Step, median (ms)", "step_ms_median"),
    tables.of_summary("Step, p95 (ms)", "step_ms_p95"),
    tables.of_summary("Steps", "n_steady_steps", form="%d", exact=True),
    tables.of_summary("Accuracy (%)", "test_accuracy", 100, "%.1f"),
    tables.Column(
        "Copied first (s)",
        tables.help_of("stage_s"),
        lambda r: r.summary.stage_s if r.summary.stage_s > 0 else math.nan,
    ),
    tables.of_summary("GPU-util (%)", "gpu_util_pct_mean", form="%.0f"),
    tables.of_summary("SM activity (%)", "gpu_sm_active_pct_mean", form="%.0f"),
    tables.of_summary("SM occupancy (%)", "gpu_sm_occupancy_pct_mean", form="%.0f"),
    tables.of_summary("GPU memory (MiB)", "gpu_mem_peak_bytes", MIB),
    tables.of_summary("Reserved (MiB)", "gpu_mem_reserved_peak_bytes", MIB),
    tables.of_summary("Allocated (MiB)", "gpu_mem_allocated_peak_bytes", MIB),
    tables.of_summary("Memory (MiB)", "rss_peak_bytes", MIB),
)


def table(runs: Sequence[StoredRun], baseline: int | None) -> pd.DataFrame:
    """Returns one row for each run, with the columns of `COLUMNS` that some run has a value for."""
    summaries = [run.summary or RunSummary() for run in runs]
    gains = against(summaries, baseline)
    rows = [(ComparisonRow(run, s, gain),) for run, s, gain in zip(runs, summaries, gains, strict=True)]
    return tables.frame(COLUMNS, rows)


def draw_table(runs: Sequence[StoredRun], baseline: int | None) -> None:
    """Draws the table, and says which figures none of the runs has."""
    shown = table(runs, baseline)
    tables.draw(COLUMNS, shown, key="compare-table", own_csv=True)
    absent = [c.name.partition(" (")[0] for c in COLUMNS if c.name not in shown and not c.name.startswith(UNTOLD)]
    hidden = f" Not available for these runs: {', '.join(absent)}." if absent else ""
    st.caption(f"Click a header to sort by its numbers.{hidden}{escaped(_without_sm_activity(runs))}")


def _without_sm_activity(runs: Sequence[StoredRun]) -> str:
    """Returns which of the runs on a GPU have no SM activity, and why; "" where all have it."""
    of: dict[str, list[str]] = {}
    for run in runs:
        if reason := sm_activity(run.summary or RunSummary(), run.environment).why_not:
            of.setdefault(reason, []).append(str(run.id))
    return "".join(
        f" SM activity of run{'s' if len(ids) > 1 else ''} {', '.join(ids)} is not available: {reason}."
        for reason, ids in of.items()
    )
