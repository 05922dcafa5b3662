"""What a setting costs against its throughput, and when it has paid for its preparation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis import tournament
from vitprof.charts.comparison import run_line
from vitprof.charts.style import axis, hover_texts, plain
from vitprof.charts.tournament import shared

COSTS: dict[tournament.Cost, str] = {
    "rss_bytes": "memory of the processes",
    "ram_bytes": "RAM disk and kept samples",
    "disk_bytes": "disk for the storage",
    "prepare_s": "preparation time",
}
"""Cost of a setting -> its name on axes and in choices."""


def pareto_chart(board: tournament.Leaderboard, against: tournament.Cost) -> go.Figure:
    """Returns throughput against a cost of the settings; the front is a staircase that no setting is above."""
    known = [row for row in board.rows if row.rank is not None and math.isfinite(tournament.cost(row, against))]
    front = set(tournament.pareto(board, against))
    most = max((tournament.cost(row, against) for row in known), default=0.0)
    unit = shared.time_unit(most) if against == "prepare_s" else shared.unit_for(most, shared.BYTES)
    on = sorted((r for r in known if r.key in front), key=lambda r: (tournament.cost(r, against), r.samples_per_s))
    off = [row for row in known if row.key not in front]
    figure = go.Figure()
    for name, rows in (("on the front", on), ("another is better in both", off)):
        if not rows:
            continue
        labelled = name == "on the front"
        colour = shared.FRONT_COLOUR if labelled else shared.REST_COLOUR
        costs = [tournament.cost(row, against) / unit.size for row in rows]
        figure.add_scatter(
            x=costs,
            y=[row.samples_per_s for row in rows],
            name=name,
            mode="lines+markers+text" if labelled else "markers",
            line={"shape": "hv", "color": shared.FRONT_COLOUR, "width": 1.5, "dash": "dot"},
            marker={
                "color": colour,
                "size": 11,
                "symbol": ["diamond" if row.key == board.baseline else "circle" for row in rows],
            },
            error_y=shared.speed_whiskers(rows, color=colour, thickness=1),
            text=[f"{plain(row.entry.strategy)}, batch {row.entry.batch_size:,}" for row in rows] if labelled else None,
            # Above and below in turn, because neighbours on the front are close together.
            textposition=[
                f"{('top', 'bottom')[i % 2]} {'right' if at * unit.size <= most / 2 else 'left'}"
                for i, at in enumerate(costs)
            ],
            cliponaxis=False,
            **hover_texts(
                [
                    f"{shared.row_words(row, board)}<br>{COSTS[against]}: {_cost_in_words(row, against)}<br>{name}"
                    for row in rows
                ]
            ),
        )
    names = "; ".join(f"{tournament.setting_in_words(r.entry)} ({_cost_in_words(r, against)})" for r in on)
    return shared.finish(
        figure,
        f"Throughput against {COSTS[against]}",
        f"Throughput against {COSTS[against]} of {len(known)} settings. On the Pareto front: {names or 'none yet'}.",
        legend=shared.LEGEND_BELOW,
        showlegend=True,
        hovermode="closest",
        xaxis=axis(f"{COSTS[against]} ({unit.name})", rangemode="tozero"),
        yaxis=axis("throughput (samples/s)", rangemode="tozero"),
    )


def _cost_in_words(row: tournament.LeaderboardRow, against: tournament.Cost) -> str:
    value = tournament.cost(row, against)
    return formats.seconds(value) if against == "prepare_s" else formats.size(value)


MOST_LINES = 7
"""Settings besides the baseline at most: as many as there are colours that can be told apart."""
MOST_EPOCHS = 1000
"""A later crossing is given in words only."""
TITLE = "Total time by epochs, with preparation"


def break_even_chart(board: tournament.Leaderboard) -> go.Figure:
    """Returns total time, preparation included, by number of epochs; a mark shows where a setting passes the baseline.

    It has the baseline and the fastest settings whose preparation time is known, at most `MOST_LINES`.
    """
    base = board.row(board.baseline)
    crossing_of = {b.key: b for b in tournament.break_even(board) if math.isfinite(b.extra_s)}
    rows = [row for row in board.rows if row.key in crossing_of][:MOST_LINES]
    if base is None or not rows:
        return shared.finish(
            go.Figure(), TITLE, "Total time by epochs: no figures yet.", **_total_axes(shared.Unit("s", 1.0))
        )
    crossings = {row.key: crossing_of[row.key].epochs for row in rows if 0 < crossing_of[row.key].epochs <= MOST_EPOCHS}
    epochs = max(10, math.ceil(1.5 * max(crossings.values(), default=0.0)))
    n = sorted({round(epochs * share / 20) for share in range(21)})
    totals = {row.key: [tournament.setup_s(row) + at * row.epoch_s for at in n] for row in (base, *rows)}
    unit = shared.time_unit(max(max(values) for values in totals.values()))
    figure = go.Figure()
    for place, row in enumerate((base, *rows)):
        line = run_line(place - 1, width=2) if place else {"color": shared.BASELINE, "dash": "dash", "width": 2}
        name = f"{plain(tournament.setting_in_words(row.entry))}{'' if place else ' (baseline)'}"
        hovers = [f"{name}<br>{formats.seconds(s)} for {at:,} epochs" for at, s in zip(n, totals[row.key], strict=True)]
        figure.add_scatter(
            x=n,
            y=[s / unit.size for s in totals[row.key]],
            name=name,
            mode="lines",
            line=line,
            **hover_texts(hovers),
        )
    crossed = [row for row in rows if row.key in crossings]
    figure.add_scatter(
        x=[crossings[row.key] for row in crossed],
        y=[(tournament.setup_s(base) + crossings[row.key] * base.epoch_s) / unit.size for row in crossed],
        name="break-even",
        mode="markers",
        marker={
            "symbol": "x",
            "size": 11,
            "color": [run_line(rows.index(row))["color"] for row in crossed],
            "line": {"width": 1, "color": shared.BASELINE},
        },
        **hover_texts(
            [f"{plain(tournament.setting_in_words(row.entry))}<br>{crossing_of[row.key].sentence}" for row in crossed]
        ),
    )
    return shared.finish(figure, TITLE, _totals_alt(rows, crossing_of), **_total_axes(unit))


def _total_axes(unit: shared.Unit) -> dict[str, Any]:
    return {
        "legend": shared.LEGEND_BELOW,
        "showlegend": True,
        "hovermode": "closest",
        "xaxis": axis("epochs trained", rangemode="tozero"),
        "yaxis": axis(f"total time ({unit.name})", rangemode="tozero"),
    }


def _totals_alt(rows: Sequence[tournament.LeaderboardRow], crossing_of: dict[str, tournament.BreakEven]) -> str:
    text = "; ".join(f"{tournament.setting_in_words(row.entry)} {crossing_of[row.key].sentence}" for row in rows)
    return f"Total time by number of epochs, against the baseline: {text}."
