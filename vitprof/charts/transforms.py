"""The chart of the time that each transform takes for a sample."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.timing.loading import TransformTime
from vitprof.charts.style import LOADING_COLOURS, axis, plain

NAME_SHOWN = 22
"""Characters of a name beside its bar, so that bars have room on a narrow screen; the hover text has the whole name."""
ROW_PX, AROUND_PX = 28, 76
"""Height of a bar, and of what is above and below all bars."""


def transform_bars(found: Sequence[TransformTime]) -> go.Figure:
    """Returns one bar for each transform, in the order of the Compose, labelled with its share of their time."""
    names = [plain(t.name) for t in found]
    told = [
        f"{name}<br>{formats.seconds(t.s_per_sample)} a sample, {formats.percent(t.frac)}, n = {t.calls:,}"
        for name, t in zip(names, found, strict=True)
    ]
    bars = go.Bar(
        x=[t.s_per_sample * 1e3 for t in found],
        y=names,
        orientation="h",
        text=[formats.percent(t.frac) for t in found],
        textposition="outside",
        cliponaxis=False,
        marker={"color": LOADING_COLOURS["transform"], "line": {"width": 0}},
        hovertext=told,
        hovertemplate="%{hovertext}<extra></extra>",
    )
    longest = max((t.s_per_sample * 1e3 for t in found), default=0.0)
    shown = [plain(t.name if len(t.name) <= NAME_SHOWN else t.name[: NAME_SHOWN - 1] + "…") for t in found]
    return go.Figure(bars).update_layout(
        margin={"l": 8, "r": 40, "t": 8, "b": 44},
        showlegend=False,
        height=AROUND_PX + ROW_PX * len(names),
        xaxis=axis("mean time for each sample (ms)", range=[0, longest * 1.05 or 1], fixedrange=True),
        yaxis=axis(
            "transform",
            type="category",
            autorange="reversed",
            tickvals=names,
            ticktext=shown,
            automargin=True,
            fixedrange=True,
            showgrid=False,
        ),
    )
