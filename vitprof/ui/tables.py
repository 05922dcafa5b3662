"""Tables of figures: numbers as numbers, so that a click on a header sorts by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import streamlit as st

from vitprof.formats import NOT_AVAILABLE
from vitprof.recording.columns import RunSummary, columns
from vitprof.ui.texts import sentence

DIGITS = 3
"""Significant digits, as everywhere (`vitprof.formats`)."""
MIB = 2**20
MAX_ROWS_SHOWN, SCROLLED_PX = 12, 460
"""A longer table is as high as one of 12 rows, and is scrolled."""


@dataclass(frozen=True)
class Column:
    """A column: its header with the unit, its help, and its value for a row (NaN: not available)."""

    name: str
    help: str
    value: Callable[..., str | float]
    format: str = "localized"
    exact: bool = False
    """Whether its value is shown unrounded: a count, or rounded already."""
    always: bool = False
    """Whether it is shown even where no row has a value."""
    width: int | None = None
    pinned: bool = False
    """Whether it stays in sight while the rest is scrolled."""


DOCS = {column.name: column.doc for column in columns(RunSummary)}


def help_of(field: str) -> str:
    return sentence(DOCS[field])


def of_summary(name: str, field: str, scale: float = 1.0, form: str = "localized", *, exact: bool = False) -> Column:
    return Column(name, help_of(field), lambda row, *_: scale * getattr(row.summary, field), form, exact)


def frame(columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Returns one row for each of `rows`, whose parts are the arguments of `Column.value`. Columns without any value
    are left out unless they are `always` shown; numbers have three significant digits unless they are `exact`.
    """
    data: dict[str, list[str] | list[float]] = {}
    for column in columns:
        values = [column.value(*row) for row in rows]
        if any(isinstance(value, str) for value in values):
            if column.always or any(value not in ("", NOT_AVAILABLE) for value in values):
                data[column.name] = [str(value) for value in values]
        elif column.always or any(math.isfinite(float(value)) for value in values):
            data[column.name] = [float(value) if column.exact else rounded(float(value)) for value in values]
    return pd.DataFrame(data)


def draw(
    columns: Sequence[Column], shown: pd.DataFrame, *, key: str, placeholder: str = NOT_AVAILABLE, own_csv: bool = False
) -> None:
    config = column_config(columns, shown)
    with st.container(key=f"{'own-csv-' if own_csv else ''}{key}-place"):
        show(shown, key=key, height=height_of(len(shown)), placeholder=placeholder, column_config=config)


def show(data: Any, *, key: str, height: int | Literal["content"] = "content", **more: Any) -> Any:
    """Draws a table; returns what `st.dataframe`, which gets `more`, does."""
    return st.dataframe(data, hide_index=True, width="stretch", height=height, key=key, **more)


def column_config(columns: Sequence[Column], shown: pd.DataFrame) -> dict[str, Any]:
    return {
        c.name: st.column_config.TextColumn(c.name, help=c.help, pinned=c.pinned, width=c.width)
        if pd.api.types.is_string_dtype(shown[c.name])
        else st.column_config.NumberColumn(c.name, help=c.help, format=c.format, pinned=c.pinned, width=c.width)
        for c in columns
        if c.name in shown
    }


def height_of(rows: int) -> int | Literal["content"]:
    return "content" if rows <= MAX_ROWS_SHOWN else SCROLLED_PX


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else math.nan
