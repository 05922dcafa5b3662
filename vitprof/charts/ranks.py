"""What each rank of a distributed job waits for its data, over the steps."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Floats, Series
from vitprof.charts import style

MOST_BINS = 240
"""Steps, or means of neighbouring ones, that are drawn: more would be narrower than a pixel on a phone."""
ROW_PX, AROUND_PX = 34, 110


def wait_map(steps: Mapping[int, Series]) -> go.Figure:
    """Returns a heat map of the exposed data wait (ms) by rank (rows) and step; with more steps than `MOST_BINS`, the
    means of neighbouring ones. The colours are Cividis, for colour vision deficiency too.
    """
    ranks = sorted(steps)
    longest = max((steps[rank]["step"] for rank in ranks), key=len)
    last = int(longest[-1]) + 1 if len(longest) else 1
    width = max(1, -(-last // MOST_BINS))
    edges = np.arange(0, last + width, width, dtype=np.float64)
    rows = [_binned(steps[rank]["step"], steps[rank]["exposed_wait_s"] * 1e3, edges) for rank in ranks]
    names = [f"rank {rank}" for rank in ranks]
    hovers = [
        [
            f"{name}, {_steps(float(at), width)}<br>exposed data wait {formats.number(value, 'ms')}"
            for at, value in zip(edges[:-1], row, strict=True)
        ]
        for name, row in zip(names, rows, strict=True)
    ]
    heat = go.Heatmap(
        x=edges[:-1],
        y=names,
        z=[[None if np.isnan(value) else value for value in row] for row in rows],
        colorscale="Cividis",
        zmin=0,
        ygap=2,
        colorbar={"title": {"text": "ms"}, "thickness": 12},
        hoverongaps=False,
        **style.hover_texts(hovers),
    )
    waits = (f"{name} {formats.number(float(np.nanmean(row)), 'ms')}" for name, row in zip(names, rows, strict=True))
    return go.Figure(heat).update_layout(
        margin=style.MARGIN | {"l": 16},
        height=AROUND_PX + ROW_PX * len(ranks),
        meta={"alt": f"Exposed data wait of each rank by step. Mean of a step: {', '.join(waits)}."},
        xaxis=style.axis("step", showgrid=False),
        yaxis=style.categories(names, autorange="reversed", automargin=True, showgrid=False),
    )


def _binned(numbers: Floats, values: Floats, edges: Floats) -> Floats:
    known = np.isfinite(values)
    total, _ = np.histogram(numbers[known], edges, weights=values[known])
    n, _ = np.histogram(numbers[known], edges)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)


def _steps(first: float, width: int) -> str:
    return f"step {first:,.0f}" if width == 1 else f"steps {first:,.0f} to {first + width - 1:,.0f}"
