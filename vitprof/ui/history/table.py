"""The table of the History page: one row for each run, with a sparkline, and a box to tick."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from vitprof.charts.style import GPU_UTIL, IDLE, NEUTRAL
from vitprof.store import RunRow
from vitprof.ui import tables

CHIPS: dict[str, str] = {
    "input-bound": IDLE,
    "moderately input-bound": "#A06900",
    "not input-bound": "#00815E",
    "launch-bound": "#A06900",
    "inconclusive": NEUTRAL,
    "queued": GPU_UTIL,
    "running": GPU_UTIL,
    "stopped": NEUTRAL,
    "failed": "#B3261E",
    "interrupted": "#B3261E",
    "simulated": "#785EF0",
}
"""Words of the verdict column -> colour: for verdicts those of the verdict card, two of them darker; the other words
are states. The text is white, with a contrast of at least 4.5 to 1 (WCAG 2, 1.4.3)."""
HELP: dict[str, str] = {
    "run": "Number of the run.",
    "name": "Its name; Edit changes it.",
    "verdict": "Whether loading held the device up. A run that failed or was stopped says so; simulated: no real "
    "device was used.",
    "spark": "Share of the time in which the device computed nothing, from the run's first step to its last. Full "
    "height: idle all the time.",
    "idle": "Share of the steady time between steps in which the device computed nothing.",
    "speed": "Steady-state throughput.",
    "strategy": "How the samples were stored, loaded and brought to the device.",
    "dataset": "What it was trained on.",
    "batch": "Samples for each step.",
    "device": "As requested.",
    "tags": "Words of your own; Edit changes them.",
    "note": "What you wrote about it; Edit changes it.",
}


TICKED = "runs ticked in History"
"""Key of their ids in the session: after opening or comparing them, the user finds them still ticked."""


def chips(row: RunRow) -> list[str]:
    """Returns the words of the verdict column."""
    words = [row.verdict_kind] if row.verdict_kind else []
    if row.status != "done":
        words.append(row.status)
    return [*words, "simulated"] if row.simulated else words


def sparkline(values: Sequence[float | None]) -> list[float]:
    """Returns the values, each unknown one (an evaluation took all of the time) replaced by the one before it."""
    line: list[float] = []
    for value in values:
        line.append(value if value is not None else line[-1] if line else 0.0)
    return line


def table(rows: Sequence[RunRow]) -> pd.DataFrame:
    """Returns one row for each run; the columns of `HELP` and the time when it was made."""
    return pd.DataFrame(
        {
            "run": [row.id for row in rows],
            "name": [row.name for row in rows],
            "verdict": [chips(row) for row in rows],
            # without a figure there was no device work, as in a loader-only run, and nothing that could idle
            "spark": [[] if row.idle_frac is None else sparkline(row.spark) for row in rows],
            "idle": [None if row.idle_frac is None else 100 * row.idle_frac for row in rows],
            "speed": [row.samples_per_s for row in rows],
            "strategy": [row.strategy for row in rows],
            "dataset": [row.dataset for row in rows],
            "batch": [row.batch_size for row in rows],
            "device": [row.device for row in rows],
            "tags": [list(row.tags) for row in rows],
            "note": [row.note for row in rows],
            "created": pd.to_datetime([row.created_utc for row in rows], utc=True, errors="coerce"),
        }
    )


def draw_table(rows: Sequence[RunRow]) -> list[RunRow]:
    """Draws the table; returns the rows that are ticked, in the order of the table."""
    zone = st.context.timezone
    column = st.column_config
    # Ticks are positions, so a page with other runs needs another key.
    key = f"history-table-{zlib.crc32(','.join(str(row.id) for row in rows).encode()):08x}"
    if key not in st.session_state:  # another page was shown meanwhile, or other runs
        before = st.session_state.get(TICKED, ())
        at = [at for at, row in enumerate(rows) if row.id in before]
        st.session_state[key] = {"selection": {"rows": at, "columns": [], "cells": []}}
    shown = tables.show(
        table(rows),
        key=key,
        on_select="rerun",
        selection_mode="multi-row",
        placeholder="",
        column_config={
            "run": column.NumberColumn("Run", help=HELP["run"], format="%d", pinned=True, width=50),
            "name": column.TextColumn("Name", help=HELP["name"], width="medium"),
            "verdict": column.MultiselectColumn(
                "Verdict", help=HELP["verdict"], options=list(CHIPS), color=list(CHIPS.values()), width=256
            ),
            "spark": column.AreaChartColumn(
                "Device idle over the run", help=HELP["spark"], y_min=0, y_max=1, color=IDLE, width=150
            ),
            "idle": column.NumberColumn("Idle", help=HELP["idle"], format="%.1f%%", width=70),
            "speed": column.NumberColumn("Samples/s", help=HELP["speed"], format="localized", step=1, width=90),
            "strategy": column.TextColumn("Strategy", help=HELP["strategy"]),
            "dataset": column.TextColumn("Data", help=HELP["dataset"], width=80),
            "batch": column.NumberColumn("Batch", help=HELP["batch"], format="%d", width=70),
            "device": column.TextColumn("Device", help=HELP["device"]),
            "tags": column.ListColumn("Tags", help=HELP["tags"]),
            "note": column.TextColumn("Note", help=HELP["note"]),
            "created": column.DatetimeColumn(
                "Made",
                help=f"When it was queued, in your time zone ({zone})." if zone else "When it was queued, in UTC.",
                format="YYYY-MM-DD HH:mm",
                timezone=zone or "UTC",
            ),
        },
    )
    ticked = [rows[at] for at in shown["selection"]["rows"] if at < len(rows)]
    st.session_state[TICKED] = {row.id for row in ticked}
    return ticked
