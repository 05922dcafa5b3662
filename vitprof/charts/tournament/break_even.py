"""The chart of when a setting has paid for its preparation: total time by number of epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import BreakEven, Leaderboard, LeaderboardRow, break_even, setting_in_words, setup_s
from vitprof.charts.comparison import run_line
from vitprof.charts.style import axis, plain
from vitprof.charts.tournament.shared import BASELINE, LEGEND_BELOW, Unit, finish, time_unit

MOST_LINES = 7
"""Settings besides the baseline at most: as many as there are colours that can be told apart."""
MOST_EPOCHS = 1000
"""A later crossing is given in words only."""
TITLE = "Total time by epochs, with preparation"


def break_even_chart(board: Leaderboard) -> go.Figure:
    """Returns total time, preparation included, by number of epochs; a mark shows where a setting passes the baseline.

    It has the baseline and the fastest settings whose preparation time is known, at most `MOST_LINES`.
    """
    base = board.row(board.baseline)
    found = {b.key: b for b in break_even(board) if math.isfinite(b.extra_s)}
    rows = [row for row in board.rows if row.key in found][:MOST_LINES]
    if base is None or not rows:
        return finish(go.Figure(), TITLE, "Total time by epochs: no figures yet.", **_total_axes(Unit("s", 1.0)))
    crossings = {row.key: found[row.key].epochs for row in rows if 0 < found[row.key].epochs <= MOST_EPOCHS}
    epochs = max(10, math.ceil(1.5 * max(crossings.values(), default=0.0)))
    n = sorted({round(epochs * share / 20) for share in range(21)})
    totals = {row.key: [setup_s(row) + at * row.epoch_s for at in n] for row in (base, *rows)}
    unit = time_unit(max(max(values) for values in totals.values()))
    figure = go.Figure()
    for place, row in enumerate((base, *rows)):
        line = run_line(place - 1, width=2) if place else {"color": BASELINE, "dash": "dash", "width": 2}
        name = f"{plain(setting_in_words(row.entry))}{'' if place else ' (baseline)'}"
        told = [f"{name}<br>{formats.seconds(s)} for {at:,} epochs" for at, s in zip(n, totals[row.key], strict=True)]
        figure.add_scatter(
            x=n,
            y=[s / unit.size for s in totals[row.key]],
            name=name,
            mode="lines",
            line=line,
            hovertext=told,
            hovertemplate="%{hovertext}<extra></extra>",
        )
    crossed = [row for row in rows if row.key in crossings]
    figure.add_scatter(
        x=[crossings[row.key] for row in crossed],
        y=[(setup_s(base) + crossings[row.key] * base.epoch_s) / unit.size for row in crossed],
        name="break-even",
        mode="markers",
        marker={
            "symbol": "x",
            "size": 11,
            "color": [run_line(rows.index(row))["color"] for row in crossed],
            "line": {"width": 1, "color": BASELINE},
        },
        hovertext=[f"{plain(setting_in_words(row.entry))}<br>{found[row.key].sentence}" for row in crossed],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return finish(figure, TITLE, _totals_alt(rows, found), **_total_axes(unit))


def _total_axes(unit: Unit) -> dict[str, Any]:
    return {
        "legend": LEGEND_BELOW,
        "showlegend": True,
        "hovermode": "closest",
        "xaxis": axis("epochs trained", rangemode="tozero"),
        "yaxis": axis(f"total time ({unit.name})", rangemode="tozero"),
    }


def _totals_alt(rows: Sequence[LeaderboardRow], found: dict[str, BreakEven]) -> str:
    said = "; ".join(f"{setting_in_words(row.entry)} {found[row.key].sentence}" for row in rows)
    return f"Total time by number of epochs, against the baseline: {said}."
