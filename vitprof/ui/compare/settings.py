"""The settings in which the compared runs differ: one row for each setting, one column for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from vitprof.analysis.compare.config_diff import Cell, Difference, config_differences
from vitprof.store import StoredRun
from vitprof.ui.compare.charts import names_of
from vitprof.ui.widgets import FIELDS, label

RUN_WIDTH = 190
HIGHLIGHT = "background-color: rgba(230, 159, 0, 0.28)"
"""Translucent, so that the text keeps its contrast on a light and on a dark page."""


def draw_settings(runs: Sequence[StoredRun], baseline: int | None) -> None:
    """Draws the settings in which the runs differ, compared with the run at position `baseline` (None: the first)."""
    if len(runs) < 2:
        st.info("Choose a second run to see in which settings the two differ.")
        return
    at = baseline or 0
    found = config_differences([run.config for run in runs], at)
    if not found:
        st.info("These runs have the same settings: any difference comes from chance or the machine.")
        return
    st.header(
        f"{len(found)} {'setting differs' if len(found) == 1 else 'settings differ'}",
        anchor=False,
        help="Only settings that are not the same in all of these runs. Highlighted: another value than the "
        "baseline's, where both runs use the setting.",
    )
    headers = names_of(runs)
    headers[at] += " (baseline)"
    st.dataframe(
        _highlighted(found, headers),
        hide_index=True,
        width="stretch",
        height="content",
        key="compare-settings",
        column_config={
            "Setting": st.column_config.TextColumn(help="As in the sidebar and on the command line.", pinned=True),
            **{header: st.column_config.TextColumn(width=RUN_WIDTH) for header in headers},
            "What it is": st.column_config.TextColumn(help="The setting's own help text.", width="large"),
        },
    )
    st.caption(
        "(default): chosen by the strategy, the model or vitprof. not set: left out, or not used by this strategy."
    )


def frame(found: Sequence[Difference], headers: Sequence[str]) -> pd.DataFrame:
    """Returns one row for each difference: the setting, its value in each run, and what it is."""
    columns: dict[str, list[str]] = {"Setting": [label(difference.field) for difference in found]}
    columns |= {header: [said(difference.cells[i]) for difference in found] for i, header in enumerate(headers)}
    columns["What it is"] = [str(FIELDS[difference.field].metadata.get("doc", "")) for difference in found]
    return pd.DataFrame(columns)


def said(cell: Cell) -> str:
    """Returns a setting's value as text, marked where it is a default."""
    return _text(cell.value) + (" (default)" if cell.default else "")


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}" if value < 2**31 else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _highlighted(found: Sequence[Difference], headers: Sequence[str]) -> Any:
    """Returns `frame` with those cells coloured that differ from the baseline's."""
    shown = frame(found, headers)
    colours = pd.DataFrame("", index=shown.index, columns=shown.columns)
    for row, difference in enumerate(found):
        for header, cell in zip(headers, difference.cells, strict=True):
            if cell.differs:
                colours.loc[row, header] = HIGHLIGHT
    return shown.style.apply(lambda _: colours, axis=None)
