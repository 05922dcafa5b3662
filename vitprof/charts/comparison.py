"""Charts of finished runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from vitprof.charts.style import LEGEND, MARGIN, RUN_COLOURS, axis, plain

Floats = NDArray[np.float64]


def overlay(series: Sequence[tuple[str, Floats, Floats]], *, x_title: str, y_title: str) -> go.Figure:
    """One line for each run: (name, x, y) with at most 2,000 points each."""
    figure = go.Figure(
        [
            go.Scatter(x=x, y=y, name=plain(name), mode="lines", line={"color": colour, "width": 1.5})
            for (name, x, y), colour in zip(series, _cycle(len(series)), strict=True)
        ]
    )
    return figure.update_layout(
        margin=MARGIN, legend=LEGEND, hovermode="x unified", xaxis=axis(x_title), yaxis=axis(y_title), showlegend=True
    )


def _cycle(n: int) -> list[str]:
    return [RUN_COLOURS[i % len(RUN_COLOURS)] for i in range(n)]


def shares(
    names: Sequence[str],
    parts: Sequence[tuple[str, str, Sequence[float]]],
    *,
    x_title: str = "mean time of a step (ms)",
    unit: str = " ms",
) -> go.Figure:
    """Stacked horizontal bars, one for each run: (part, colour, its length for each run in `unit`)."""
    figure = go.Figure(
        [
            go.Bar(
                y=[plain(n) for n in names],
                x=list(values),
                name=part,
                orientation="h",
                marker_color=colour,
                hovertemplate=f"%{{x:.3~g}}{unit} {part}<extra>%{{y}}</extra>",
            )
            for part, colour, values in parts
        ]
    )
    return figure.update_layout(
        barmode="stack",
        margin=MARGIN | {"l": 16},
        legend=LEGEND | {"traceorder": "normal"},
        xaxis=axis(x_title),
        yaxis={"autorange": "reversed", "automargin": True, "type": "category"},
    )
