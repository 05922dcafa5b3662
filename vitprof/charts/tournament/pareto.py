"""The chart of throughput against cost, with the Pareto front."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import Cost, Leaderboard, LeaderboardRow, cost, pareto, setting_in_words
from vitprof.charts.style import axis, plain
from vitprof.charts.tournament.shared import (
    BYTES,
    FRONT_COLOUR,
    LEGEND_BELOW,
    REST_COLOUR,
    finish,
    row_words,
    time_unit,
    unit_for,
)

COSTS: dict[Cost, str] = {
    "rss_bytes": "memory of the processes",
    "ram_bytes": "RAM disk and kept samples",
    "disk_bytes": "disk for the storage",
    "prepare_s": "preparation time",
}
"""Cost of a setting -> its name on axes and in choices."""


def pareto_chart(board: Leaderboard, against: Cost) -> go.Figure:
    """Returns throughput against a cost of the settings; the front is a staircase that no setting is above."""
    known = [row for row in board.rows if row.rank is not None and math.isfinite(cost(row, against))]
    front = set(pareto(board, against))
    most = max((cost(row, against) for row in known), default=0.0)
    unit = time_unit(most) if against == "prepare_s" else unit_for(most, BYTES)
    on = sorted((r for r in known if r.key in front), key=lambda r: (cost(r, against), r.samples_per_s))
    off = [row for row in known if row.key not in front]
    figure = go.Figure()
    for name, rows in (("on the front", on), ("another is better in both", off)):
        if not rows:
            continue
        labelled = name == "on the front"
        costs = [cost(row, against) / unit.size for row in rows]
        figure.add_scatter(
            x=costs,
            y=[row.samples_per_s for row in rows],
            name=name,
            mode="lines+markers+text" if labelled else "markers",
            line={"shape": "hv", "color": FRONT_COLOUR, "width": 1.5, "dash": "dot"},
            marker={
                "color": FRONT_COLOUR if labelled else REST_COLOUR,
                "size": 11,
                "symbol": ["diamond" if row.key == board.baseline else "circle" for row in rows],
            },
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [row.high - row.samples_per_s for row in rows],
                "arrayminus": [row.samples_per_s - row.low for row in rows],
                "color": FRONT_COLOUR if labelled else REST_COLOUR,
                "thickness": 1,
            },
            text=[f"{plain(row.entry.strategy)}, batch {row.entry.batch_size:,}" for row in rows] if labelled else None,
            # Above and below in turn, because neighbours on the front are close together.
            textposition=[
                f"{('top', 'bottom')[i % 2]} {'right' if at * unit.size <= most / 2 else 'left'}"
                for i, at in enumerate(costs)
            ],
            cliponaxis=False,
            hovertext=[
                f"{row_words(row, board)}<br>{COSTS[against]}: {_cost_in_words(row, against)}<br>{name}" for row in rows
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    names = "; ".join(f"{setting_in_words(r.entry)} ({_cost_in_words(r, against)})" for r in on)
    return finish(
        figure,
        f"Throughput against {COSTS[against]}",
        f"Throughput against {COSTS[against]} of {len(known)} settings. On the Pareto front: {names or 'none yet'}.",
        legend=LEGEND_BELOW,
        showlegend=True,
        hovermode="closest",
        xaxis=axis(f"{COSTS[against]} ({unit.name})", rangemode="tozero"),
        yaxis=axis("throughput (samples/s)", rangemode="tozero"),
    )


def _cost_in_words(row: LeaderboardRow, against: Cost) -> str:
    value = cost(row, against)
    return formats.seconds(value) if against == "prepare_s" else formats.size(value)
