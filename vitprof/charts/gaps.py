"""Charts of the device's idle time: moment by moment, over the whole run, and summed by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Floats
from vitprof.analysis.bootstrap import Interval
from vitprof.analysis.timing.gaps import IDLE_CAUSES, Gaps
from vitprof.analysis.timing.loading import Loading
from vitprof.analysis.timing.timeline import KINDS, LANES, Timeline
from vitprof.charts.style import (
    COMPUTE,
    DEVICE_TIME,
    GPU_UTIL,
    IDLE,
    LEGEND,
    LOADING_COLOURS,
    MARGIN,
    PALE_IDLE,
    REFERENCE,
    axis,
    ink_on,
)

MAX_SHAPES = 500
"""Spans in a time line at most: more are slow to draw, and too narrow to be seen."""
NARROW_FRAC = 0.05
"""A piece of a bar below this share has no text in it; the legend shows its share."""
KERNELS = "kernels"
"""Compute without launch bubbles."""
LANE_NAMES: dict[str, str] = {"host": "loop", "copy": "copy", "device": "device", "launches": "bubbles"}
"""Lane of a `Timeline` -> its name in charts."""


def timeline_chart(line: Timeline, *, origin_s: float, mark: int | None = None) -> go.Figure:
    """Returns lanes of the loop, the copy and the device, in which a gap has the colour of its cause.

    Launch bubbles have a lane of their own, if there are any. There is one trace for each kind of span, so the cost
    does not depend on their number. It shows whole steps from the first one on, at most `MAX_SHAPES` spans;
    `customdata` is the step's number. `origin_s` is where the x axis begins, on the monotonic clock. The step with the
    number `mark` has a frame around its part of the device's time.
    """
    steps, counts = np.unique(line.step, return_counts=True)
    fit = max(1, int((np.cumsum(counts) <= MAX_SHAPES).sum()))
    drawn = np.isin(line.step, steps[:fit])
    device = LANES.index("device")
    figure = go.Figure()
    for number, name in enumerate(KINDS):
        words, colour = DEVICE_TIME[name]
        at = np.flatnonzero(drawn & (line.kind == number))
        if not len(at):
            continue
        length = line.end_s[at] - line.start_s[at]
        texts = [
            f"step {k:,}<br>{'device idle' if lane == device and name != 'compute' else words} {formats.seconds(s)}"
            + (f", cause: {words}" if lane == device and name != "compute" else "")
            for k, lane, s in zip(line.step[at].tolist(), line.lane[at].tolist(), length.tolist(), strict=True)
        ]
        figure.add_bar(
            x=length,
            base=line.start_s[at] - origin_s,
            y=[LANE_NAMES[LANES[lane]] for lane in line.lane[at].tolist()],
            orientation="h",
            name=words,
            marker={"color": colour, "line": {"width": 0}},
            hovertext=texts,
            hovertemplate="%{hovertext}<extra></extra>",
            customdata=line.step[at],
        )
    span = f", steps {int(steps[0]):,} to {int(steps[fit - 1]):,}" if len(steps) else ""
    lanes = [LANE_NAMES[lane] for number, lane in enumerate(LANES) if lane != "launches" or number in line.lane]
    marked = np.flatnonzero(drawn & (line.lane == device) & (line.step == mark))
    if len(marked):
        figure.add_shape(
            type="rect",
            x0=line.start_s[marked].min() - origin_s,
            x1=line.end_s[marked].max() - origin_s,
            y0=0,
            y1=1,
            yref="paper",
            line={"color": REFERENCE, "width": 2},
        )
    return figure.update_layout(
        barmode="overlay",
        bargap=0.15,
        margin=MARGIN,
        legend=LEGEND,
        showlegend=True,
        hovermode="closest",
        xaxis=axis(f"time since the run began (s){span}"),
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": lanes[::-1], "fixedrange": True},
    )


def device_time(gaps: Gaps, intervals: Mapping[str, Interval] | None = None) -> go.Figure:
    """Returns where the device's time went, as one bar of 100%: compute, and the causes of its idle time.

    If launch bubbles are known and there are any, compute is divided into kernels and bubbles. `intervals`
    (`analysis.timing.gaps.idle_interval`) adds 95% intervals to the hover texts.
    """
    shares = dict(zip(("compute", *IDLE_CAUSES), gaps.shares().values(), strict=True))
    bubbles = gaps.launch_idle_frac
    if bubbles > 0:
        rest = {cause: shares[cause] for cause in IDLE_CAUSES}
        shares = {"compute": max(shares["compute"] - bubbles, 0.0), "launch_idle": bubbles} | rest
    pieces = []
    for name, share in shares.items():
        words, colour = DEVICE_TIME[name]
        told = f"idle, cause: {words}"
        if name == "compute":
            words = told = KERNELS if bubbles > 0 else words
        elif name == "launch_idle":
            told = f"{words}: the device waited for the next launch inside a step"
        known = (intervals or {}).get(name)
        spread = f" ({_range(known, 100, '%')})" if known is not None and np.isfinite(known.low) else ""
        text = f"{told}<br>{formats.percent(share)}{spread} of {formats.seconds(gaps.span_s)}"
        pieces.append((words, colour, share * 100, formats.percent(share), text))
    apart = f"; {formats.seconds(gaps.evaluation_ns / 1e9)} of evaluation not counted" if gaps.evaluation_ns else ""
    return _one_bar("device", pieces, f"share of the device's time (%){apart}")


def loading_bar(loading: Loading) -> go.Figure:
    """Returns where the time of loading a batch goes, in milliseconds, as one bar of the stages that are known."""
    pieces = []
    for stage in loading.stages:
        if not stage.frac >= 0:
            continue
        ms = formats.seconds(stage.ms.value / 1e3)
        spread = f" ({_range(stage.ms, 1, ' ms')})" if np.isfinite(stage.ms.low) else ""
        text = f"{stage.words}<br>{ms} a batch{spread}, {formats.percent(stage.frac)}"
        pieces.append((stage.words, LOADING_COLOURS[stage.name], stage.ms.value, formats.percent(stage.frac), text))
    return _one_bar("batch", pieces, f"mean time to load a batch (ms), n = {loading.n:,}")


def idle_heat(edges_s: Floats, share: Floats, *, origin_s: float) -> go.Figure:
    """Returns the idle share over the run as one row of colours (`analysis.timing.utilisation.idle_bins`).

    Its cost does not depend on the length of the run. Green is busy, as everywhere; pale is idle; evaluation is left
    blank. `edges_s` is (m + 1,), `share` is (m,), and `origin_s` is where the x axis begins, on the monotonic clock.
    """
    centre = (edges_s[:-1] + edges_s[1:]) / 2 - origin_s if len(edges_s) else edges_s
    heat = go.Heatmap(
        x=centre,
        y=["device"],
        z=share[None] * 100,
        zmin=0,
        zmax=100,
        colorscale=[[0.0, COMPUTE], [1.0, PALE_IDLE]],
        showscale=False,
        hovertemplate="at %{x:.4~g} s<br>device idle %{z:.0f}%<extra></extra>",
    )
    return go.Figure(heat).update_layout(
        margin=MARGIN,
        xaxis=axis("time since the run began (s); green: busy, pale: idle"),
        yaxis={"type": "category", "fixedrange": True, "showgrid": False},
    )


def idle_over_time(
    reported: tuple[Floats, Floats],
    *,
    true: tuple[Floats, Floats] | None = None,
    sampled: tuple[Floats, Floats] | None = None,
    sampled_name: str = "100% - GPU-util (NVML-style, trailing)",
) -> go.Figure:
    """Returns the device's idle share over time; each line is (seconds since the run began, share 0 to 1).

    `reported` is what vitprof found, each value at the end of the span that it describes. `true` is what it must be by
    arithmetic. `sampled` is what a counter like NVML's shows at its sampling times, a mean of the time before.
    """
    lines: list[tuple[str, tuple[Floats, Floats] | None, dict[str, Any]]] = [
        ("true, by arithmetic", true, {"color": REFERENCE, "width": 7}),
        (sampled_name, sampled, {"color": GPU_UTIL, "width": 1.5, "shape": "vh"}),
        ("reported by vitprof", reported, {"color": IDLE, "width": 2, "shape": "vh"}),
    ]
    figure = go.Figure(
        [
            go.Scatter(
                x=xy[0],
                y=xy[1] * 100,
                name=name,
                mode="lines",
                line=line,
                hovertemplate="%{y:.1f}%",
            )
            for name, xy, line in lines
            if xy is not None
        ]
    )
    return figure.update_layout(
        margin=MARGIN,
        legend=LEGEND,
        showlegend=True,
        hovermode="x unified",
        xaxis=axis("time since the run began (s)"),
        yaxis=axis("device idle (%)", range=[0, 105]),
    )


def _one_bar(name: str, pieces: Sequence[tuple[str, str, float, str, str]], x_title: str) -> go.Figure:
    """Returns one stacked bar of (name, colour, length, share in words, hover text), without those of length 0."""
    whole = sum(length for _, _, length, _, _ in pieces if length > 0)
    figure = go.Figure(
        [
            go.Bar(
                y=[name],
                x=[length],
                name=f"{words} {share}",
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                text=[f"{words}<br>{share}" if length > NARROW_FRAC * whole else ""],
                textposition="inside",
                insidetextanchor="middle",
                insidetextfont={"color": ink_on(colour)},
                textangle=0,
                constraintext="inside",
                hovertext=[text],
                hovertemplate="%{hovertext}<extra></extra>",
            )
            for words, colour, length, share, text in pieces
            if length > 0
        ]
    )
    return figure.update_layout(
        barmode="stack",
        margin=MARGIN,
        legend=LEGEND | {"traceorder": "normal"},
        uniformtext={"minsize": 11, "mode": "hide"},
        showlegend=True,
        xaxis=axis(x_title, range=[0, whole] if whole > 0 else None),
        yaxis={"type": "category", "fixedrange": True},
    )


def _range(interval: Interval, scale: float, unit: str) -> str:
    """Returns both ends of an interval in words, rounded alike."""
    return f"{interval.low * scale:.3g} to {interval.high * scale:.3g}{unit}"
