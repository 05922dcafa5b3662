"""What each rank of a distributed job does: waits or steps as a heat map, and lanes of a few steps
over time.
"""

import math
from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Floats, Series
from vitprof.charts import style

MOST_BINS = 240
"""Steps, or means of neighbouring ones, that are drawn: more would be narrower than a pixel on a
phone."""
ROW_PX = 34
"""Height of a rank's row."""
AROUND_PX = 110
"""Height of what is above and below all rows."""
LEGEND_PX = 40
"""Height of the lanes' legend."""


MAPS = {"exposed_wait_s": "exposed data wait", "step_s": "step time"}
"""Column of a heat map, and its words."""
LANE_STEPS = 24
"""Steps whose lanes are drawn."""
LANES = (
    ("waits for its data", "exposed_wait_s", style.DATA_WAIT),
    ("forward pass", "forward_s", style.COMPUTE),
    ("backward pass, waits for the others, optimizer, logging", "", style.NEUTRAL),
)
"""Part of a step, its column ("" for what is left), and its colour."""


def rank_map(steps: Mapping[int, Series], column: str = "exposed_wait_s") -> go.Figure:
    """Returns a heat map of one of `MAPS` (ms) by rank (rows) and step.

    With more steps than `MOST_BINS`, it has the means of neighbouring ones. The colours are
    Cividis, for colour vision deficiency, too.
    """
    words = MAPS[column]
    ranks = sorted(steps)
    longest = max((steps[rank]["step"] for rank in ranks), key=len)
    n_steps = 1
    if len(longest):
        n_steps = int(longest[-1]) + 1
    width = math.ceil(n_steps / MOST_BINS)
    edges = np.arange(0, n_steps + width, width, dtype=np.float64)
    rows = [_binned(steps[rank]["step"], steps[rank][column] * 1e3, edges) for rank in ranks]
    names = [f"rank {rank}" for rank in ranks]
    hovers = [
        [
            f"{name}, {_steps(float(at), width)}<br>{words} {formats.number(value, 'ms')}"
            for at, value in zip(edges[:-1], row, strict=True)
        ]
        for name, row in zip(names, rows, strict=True)
    ]
    heat = go.Heatmap(
        x=edges[:-1],
        y=names,
        # JSON has no NaN.
        z=[[None if np.isnan(value) else value for value in row] for row in rows],
        colorscale="Cividis",
        zmin=0,
        ygap=2,
        colorbar={"title": {"text": "ms"}, "thickness": 12},
        hoverongaps=False,
        **style.hover_texts(hovers),
    )
    waits = (
        f"{name} {formats.number(float(np.nanmean(row)), 'ms')}"
        for name, row in zip(names, rows, strict=True)
    )
    return go.Figure(heat).update_layout(
        margin=style.MARGIN | {"l": 16},
        height=AROUND_PX + ROW_PX * len(ranks),
        meta={"alt": f"{words.capitalize()} of each rank by step. Mean: {', '.join(waits)}."},
        xaxis=style.axis("step", showgrid=False),
        yaxis=style.categories(names, autorange="reversed", automargin=True, showgrid=False),
    )


def rank_lanes(steps: Mapping[int, Series], first: int) -> go.Figure:
    """Returns lanes of the ranks over time, `LANE_STEPS` steps from number `first` on.

    Of each step they show what is the rank's own, and the remaining time, in which it waits for the
    others. Needs `t_start_s`.
    """
    figure = go.Figure()
    many = len(steps)
    kept = {}
    for rank, of in sorted(steps.items()):
        shown = (of["step"] >= first) & (of["step"] < first + LANE_STEPS)
        kept[rank] = {name: values[shown] for name, values in of.items()}
    begins = [float(of["t_start_s"][0]) for of in kept.values() if len(of["step"])]
    origin = min(begins, default=0.0)
    for at, (words, column, colour) in enumerate(LANES):
        x = []
        base = []
        y = []
        hovers = []
        for rank, of in kept.items():
            own = [np.nan_to_num(of[name]) for _, name, _ in LANES if name]
            remaining = np.maximum(of["step_s"] - sum(own), 0.0)
            length = own[at] if column else remaining
            before = sum(own[:at], np.zeros(len(length)))
            x += length.tolist()
            base += (of["t_start_s"] - origin + before).tolist()
            y += [f"rank {rank}"] * len(length)
            hovers += [
                f"rank {rank}, step {step:,.0f}<br>{words}: {formats.seconds(s)}"
                for step, s in zip(of["step"], length, strict=True)
            ]
        if any(x):
            hover = style.hover_texts(hovers)
            figure.add_bar(
                x=x, y=y, base=base, orientation="h", name=words, marker_color=colour, **hover
            )
    names = [f"rank {rank}" for rank in kept]
    return figure.update_layout(
        **style.WITH_LEGEND,
        barmode="overlay",
        bargap=0.25,
        height=AROUND_PX + LEGEND_PX + ROW_PX * many,
        meta={
            "alt": f"{LANE_STEPS} steps of {many} ranks over time: {', '.join(words for words, *_ in LANES)}."
        },
        xaxis=style.axis(f"seconds since step {first:,} began", showgrid=True),
        yaxis=style.categories(names, autorange="reversed", automargin=True, showgrid=False),
    )


def _binned(numbers: Floats, values: Floats, edges: Floats) -> Floats:
    """Returns the mean of the values whose numbers are between each pair of edges; NaN where there
    are none.
    """
    known = np.isfinite(values)
    total, _ = np.histogram(numbers[known], edges, weights=values[known])
    n, _ = np.histogram(numbers[known], edges)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)


def _steps(first: float, width: int) -> str:
    if width == 1:
        return f"step {first:,.0f}"
    return f"steps {first:,.0f} to {first + width - 1:,.0f}"
