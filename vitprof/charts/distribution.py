"""The chart of distributions: which share of a run's steps waited for at most how long."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.compare.comparison import Distribution
from vitprof.charts.comparison import run_line
from vitprof.charts.style import LEGEND, MARGIN, NEUTRAL, axis, plain

FLOOR_MS = 1e-3
"""A logarithmic axis has no place for 0, so waits below a microsecond are drawn at one. Python's clock takes 50 to 100
ns to read, so shorter waits would mean little."""
MARKS = (("half of the steps", 0.5, "circle"), ("95% of the steps", 0.95, "diamond"))
"""What is marked on each curve: (in words, share, symbol)."""


def ecdf(runs: Sequence[tuple[str, Distribution]], *, x_title: str = "data wait (ms), logarithmic") -> go.Figure:
    """Returns a step curve for each run, of values in seconds, with its median and 95th percentile marked."""
    figure = go.Figure()
    lowest, highest = math.inf, 0.0
    for place, (name, found) in enumerate(runs):
        if not found.n:
            continue
        ms = np.maximum(found.values * 1e3, FLOOR_MS)
        lowest, highest = min(lowest, float(ms[0])), max(highest, float(ms[-1]))
        figure.add_scatter(
            x=np.concatenate([ms[:1], ms]).astype(np.float32),  # the curve begins at the bottom
            y=np.concatenate([[0.0], found.share * 100]).astype(np.float32),
            name=plain(name),
            legendgroup=str(place),
            mode="lines",
            line=run_line(place, shape="hv"),
            hovertemplate=f"{plain(name)}<br>%{{y:.3~g}}% of its steps waited at most %{{x:.3~g}} ms<extra></extra>",
        )
        values = {0.5: found.median, 0.95: found.p95}
        figure.add_scatter(
            x=[max(values[share] * 1e3, FLOOR_MS) for _, share, _ in MARKS],
            y=[share * 100 for _, share, _ in MARKS],
            legendgroup=str(place),
            showlegend=False,
            mode="markers",
            marker={
                "color": run_line(place)["color"],
                "size": 10,
                "symbol": [symbol for _, _, symbol in MARKS],
                "line": {"color": "white", "width": 1},
            },
            hovertext=[
                f"{plain(name)}<br>{words} waited at most {formats.seconds(values[share])}" for words, share, _ in MARKS
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    if figure.data:
        for words, _, symbol in MARKS:  # what the symbols mean, without a run's colour
            figure.add_scatter(
                x=[None],
                y=[None],
                name=words,
                mode="markers",
                marker={"color": NEUTRAL, "size": 10, "symbol": symbol},
                hoverinfo="skip",
            )
    decades = _decades(lowest, highest)
    wide = decades is not None and decades[1] - decades[0] > 2  # else the numbers in between are needed
    return figure.update_layout(
        margin=MARGIN,
        legend=LEGEND,
        showlegend=True,
        hovermode="closest",
        xaxis=axis(
            x_title, type="log", range=decades, dtick=1 if wide else None, minor={"ticks": "outside", "dtick": "D1"}
        ),
        yaxis=axis("steps that waited at most this long (%)", range=[-2, 102]),
    )


def _decades(lowest: float, highest: float) -> list[float] | None:
    """Returns the axis from the decade of the shortest wait to that of the longest, at least one; None for no wait."""
    if not highest > 0:
        return None
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    return [first, max(last, first + 1)]
