"""Tables of figures: numbers as numbers, so that a click on a header sorts by them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import streamlit as st

from vitprof.formats import NOT_AVAILABLE, percent, sentence
from vitprof.recording.columns import RunSummary, columns
from vitprof.ui.texts import escaped

DIGITS = 3
"""Significant digits, as everywhere (`vitprof.formats`)."""
MIB = 2**20
MAX_ROWS_SHOWN = 12
"""Rows of a table that are shown without scrolling."""
SCROLLED_PX = 460
"""Height of a longer table: that of one of 12 rows."""


@dataclass(frozen=True)
class TableColumn:
    """A column: its header with the unit, its help, and its value for a row (None or NaN: not
    available).
    """

    name: str
    help: str
    value: Callable[..., str | float | None]
    format: str = "localized"
    exact: bool = False
    """Whether its values are rounded already. A count, an int, is never rounded."""
    width: int | None = None
    """Pixels; None: as wide as its content needs."""
    pinned: bool = False
    """Whether it stays in sight while the rest is scrolled."""
    bar: bool = False
    """Whether numbers are drawn as bars, too."""
    bar_full: float = math.nan
    """What a bar's whole length stands for; NaN for the largest number of all such bars of the table."""


def in_percent(share: float | None) -> float | None:
    """Returns a share in percent, rounded as texts have it (`formats.percent`); None if not known."""
    words = percent(share)
    return None if words == NOT_AVAILABLE else float(words.removesuffix("%"))


NO_FIGURES = RunSummary()
DOCS = {column.name: column.doc for column in columns(RunSummary)}


def help_of(field: str) -> str:
    return sentence(DOCS[field])


IDLE_HELP = (
    "Share of the training time that the verdict states: the device idled for data and copies. In a "
    "launch-bound run it waited for Python."
)
DEVICE_IDLE_HELP = f"For data and for anything else: {DOCS['device_idle_frac']}."


def of_summary(name: str, field: str, scale: float = 1, form: str = "localized") -> TableColumn:
    return TableColumn(
        name,
        help_of(field),
        lambda row, *_: scale * getattr(row.summary or NO_FIGURES, field),
        form,
    )


def frame(columns: Sequence[TableColumn], rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Returns one row for each of `rows`, whose parts are the arguments of `TableColumn.value`.

    Columns without any value are left out. Numbers have three significant digits unless they are
    whole or `exact`.
    """
    data: dict[str, list[str | float | None]] = {}
    for column in columns:
        shown = [column.value(*row) for row in rows]
        if not column.exact:
            shown = [rounded(value) if isinstance(value, float) else value for value in shown]
        if any(value not in ("", NOT_AVAILABLE) and not pd.isna(value) for value in shown):
            data[column.name] = shown
    return pd.DataFrame(data)


def draw(
    columns: Sequence[TableColumn],
    rows: Sequence[tuple[Any, ...]],
    *,
    key: str,
    placeholder: str = NOT_AVAILABLE,
    whole: bool = False,
) -> pd.DataFrame:
    """Draws a table of `rows`, see `frame`; returns what it shows.

    A long one is scrolled unless it is `whole`.
    """
    shown = frame(columns, rows)
    height = "content" if whole else height_of(len(shown))
    config = column_config(columns, shown)
    show(shown, key=key, height=height, placeholder=placeholder, column_config=config)
    return shown


def show(data: Any, *, key: str, height: int | Literal["content"] = "content", **more: Any) -> Any:
    """Draws a table; returns what `st.dataframe`, which gets `more`, does."""
    return st.dataframe(data, hide_index=True, width="stretch", height=height, key=key, **more)


def draw_words(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draws a small table of words.

    `st.dataframe` sorts and scrolls, for which a browser loads 1.2 MB more.
    """
    lines = [header, ["---"] * len(header), *rows]
    drawn = []
    for at, cells in enumerate(lines):
        shown = cells if at == 1 else [escaped(cell).replace("|", "\\|") for cell in cells]
        drawn.append(f"| {' | '.join(shown)} |")
    st.markdown("\n".join(drawn))


def column_config(columns: Sequence[TableColumn], shown: pd.DataFrame) -> dict[str, Any]:
    """Returns the `column_config` of `st.dataframe` for the columns that `shown` has."""
    config: dict[str, Any] = {}
    drawn = [column for column in columns if column.name in shown]
    bars = [column.name for column in drawn if column.bar and math.isnan(column.bar_full)]
    for c in drawn:
        about: dict[str, Any] = {"help": c.help, "pinned": c.pinned, "width": c.width}
        if c.bar:
            most = c.bar_full
            if math.isnan(most):
                most = float(shown[bars].max(axis=None))  # one scale for all of them
            made = st.column_config.ProgressColumn(
                c.name, **about, format=c.format, min_value=0.0, max_value=most
            )
        elif pd.api.types.is_string_dtype(shown[c.name]):
            made = st.column_config.TextColumn(c.name, **about)
        else:
            made = st.column_config.NumberColumn(c.name, **about, format=c.format)
        config[c.name] = made
    return config


def height_of(rows: int) -> int | Literal["content"]:
    return "content" if rows <= MAX_ROWS_SHOWN else SCROLLED_PX


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else math.nan
