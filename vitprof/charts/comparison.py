"""Charts of finished runs side by side. A run has the same colour in each, by its place among the runs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from vitprof.analysis.arrays import Floats
from vitprof.charts.style import COMPUTE, LEGEND, MARGIN, PALE_IDLE, RUN_COLOURS, axis, plain

Numbers = Floats | NDArray[np.float32]

AXIS_CHARS = 20
"""Characters in a line of a run's name on an axis."""
DASHES = ("solid", "dash", "dot", "dashdot")


def run_line(place: int, **more: Any) -> dict[str, Any]:
    """Returns the line style of the run at this place: eight colours, then the same again with other dashes."""
    turn, colour = divmod(place, len(RUN_COLOURS))
    return {"color": RUN_COLOURS[colour], "dash": DASHES[turn % len(DASHES)], "width": 1.5, **more}


def on_axis(name: str) -> str:
    """Returns a run's name for an axis, in short lines: on a phone the bar needs the room."""
    return "<br>".join(plain(line) for line in textwrap.wrap(name, AXIS_CHARS, max_lines=3, placeholder="…"))


def overlay(
    series: Sequence[tuple[str, Numbers, Numbers]], *, x_title: str, y_title: str, hover: str = "%{y:.4~g}"
) -> go.Figure:
    """Returns one line for each run: (name, x, y), with at most 2,000 points each.

    `hover` is Plotly's template for a point.
    """
    figure = go.Figure(
        [
            go.Scatter(x=x, y=y, name=plain(name), mode="lines", line=run_line(place), hovertemplate=hover)
            for place, (name, x, y) in enumerate(series)
        ]
    )
    return figure.update_layout(
        margin=MARGIN, legend=LEGEND, hovermode="x unified", xaxis=axis(x_title), yaxis=axis(y_title), showlegend=True
    )


def shares(
    names: Sequence[str],
    parts: Sequence[tuple[str, str, Sequence[float]]],
    *,
    x_title: str = "mean time of a step (ms)",
    unit: str = " ms",
) -> go.Figure:
    """Returns stacked horizontal bars, one for each run; a part is (name, colour, length for each run in `unit`)."""
    figure = go.Figure(
        [
            go.Bar(
                y=[on_axis(n) for n in names],
                x=list(values),
                name=part,
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate=f"%{{y}}<br>{part}: %{{x:.3~g}}{unit}<extra></extra>",
            )
            for part, colour, values in parts
        ]
    )
    return figure.update_layout(
        barmode="stack",
        margin=MARGIN | {"l": 16},
        legend=LEGEND | {"traceorder": "normal"},
        xaxis=axis(x_title),
        yaxis={"autorange": "reversed", "automargin": True, "type": "category", "fixedrange": True},
        showlegend=True,
    )


def idle_strips(names: Sequence[str], edges: Floats, idle: Floats) -> go.Figure:
    """Returns one row of colours for each run: green is busy, pale is idle, as in `charts.gaps.idle_heat`.

    `edges` are (m + 1,) seconds since training began, `idle` the idle share (runs, m). Blank (NaN) is evaluation, or
    after the run's end.
    """
    heat = go.Heatmap(
        x=((edges[:-1] + edges[1:]) / 2).astype(np.float32),
        y=[on_axis(name) for name in names],
        z=(idle * 100).astype(np.float32),
        zmin=0,
        zmax=100,
        ygap=3,
        colorscale=[[0.0, COMPUTE], [1.0, PALE_IDLE]],
        showscale=False,
        hoverongaps=False,
        hovertemplate="%{y}<br>at %{x:.4~g} s: device idle %{z:.0f}%<extra></extra>",
    )
    return go.Figure(heat).update_layout(
        margin=MARGIN | {"l": 16, "t": 10},
        xaxis=axis("time since training began (s)"),
        yaxis={"autorange": "reversed", "automargin": True, "type": "category", "fixedrange": True, "showgrid": False},
    )
