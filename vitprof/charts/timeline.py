"""Lanes of the loop, the copy and the device: what each did step by step, and the chain of one batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.analysis.timing.timeline import KINDS, LANES, OneStep, Timeline
from vitprof.charts.style import DEVICE_TIME, LOADING_COLOURS, REFERENCE, WITH_LEGEND, axis, categories, hover_texts

MAX_SHAPES = 500
"""Spans in a time line at most: more are slow to draw, and too narrow to be seen."""
LANE_NAMES: dict[str, str] = {"host": "loop", "copy": "copy", "device": "device", "launches": "bubbles"}
"""Lane of a `Timeline` -> its name in charts."""


def timeline_chart(line: Timeline, *, origin_s: float, mark: int | None = None) -> go.Figure:
    """Returns lanes of the loop, the copy and the device, in which a gap has the colour of its cause, and of launch
    bubbles; one trace for each kind of span. It shows whole steps from the first one on, at most `MAX_SHAPES` spans;
    `customdata` is the step's number, and `mark` that of the framed step. `origin_s` is where x begins, on the
    monotonic clock.
    """
    steps, counts = np.unique(line.step, return_counts=True)
    fit = max(1, int((np.cumsum(counts) <= MAX_SHAPES).sum()))
    drawn = np.isin(line.step, steps[:fit])
    device = LANES.index("device")
    figure = go.Figure()
    for number, name in enumerate(KINDS):
        at = np.flatnonzero(drawn & (line.kind == number))
        if not len(at):
            continue
        words, colour = DEVICE_TIME[name]
        length = line.end_s[at] - line.start_s[at]
        texts = [
            f"step {k:,}<br>{_span_in_words(number, lane, s)}"
            for k, lane, s in zip(line.step[at].tolist(), line.lane[at].tolist(), length.tolist(), strict=True)
        ]
        figure.add_bar(
            x=length,
            base=line.start_s[at] - origin_s,
            y=[LANE_NAMES[LANES[lane]] for lane in line.lane[at].tolist()],
            orientation="h",
            name=words,
            marker={"color": colour, "line": {"width": 0}},
            **hover_texts(texts),
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
        **WITH_LEGEND,
        hovermode="closest",
        xaxis=axis(f"time since the run began (s){span}"),
        yaxis=categories(lanes[::-1]),
    )


LOADER_LANE = "loader"
INVISIBLE_FRAC = 0.003
"""Share of the chart's width below which a piece is under two pixels wide and would only lengthen the legend."""
Piece = tuple[str, str, str, float, float, str]
"""Lane, words, colour, start and length in seconds, hover text."""


def batch_chain(step: OneStep, line: Timeline) -> go.Figure:
    """Returns lanes of the loader, the loop, the copy and the device, in ms since the loop asked for the batch. `line`
    has the step's spans. The loader's stages are sums over the samples, drawn one after the other.
    """
    lanes = [LOADER_LANE, *(LANE_NAMES[lane] for lane in LANES)]
    pieces = [*_made(step), *_spans(line)]
    if not pieces:
        return go.Figure()
    whole_s = max(start + length for *_, start, length, _ in pieces) - min(start for *_, start, _, _ in pieces)
    figure = go.Figure()
    named: set[str] = set()
    for lane, words, colour, start_s, length_s, hover in pieces:
        if length_s < INVISIBLE_FRAC * whole_s:
            continue
        figure.add_bar(
            x=[length_s * 1e3],
            base=[(start_s - step.asked_s) * 1e3],
            y=[lane],
            orientation="h",
            name=words,
            legendgroup=words,
            showlegend=words not in named,
            marker={"color": colour, "line": {"width": 0}},
            **hover_texts([hover]),
        )
        named.add(words)
    drawn = {bar.y[0] for bar in figure.data}
    return figure.update_layout(
        barmode="overlay",
        bargap=0.2,
        **WITH_LEGEND,
        hovermode="closest",
        xaxis=axis("time since the loop asked for the batch (ms)"),
        yaxis=categories([lane for lane in lanes if lane in drawn][::-1]),
    )


def _made(step: OneStep) -> Iterator[Piece]:
    if math.isfinite(step.made_s) and step.made_s > 0:
        stages = {name: s for name, s in step.stages_s.items() if name != "hand_over" and s > 0}
        worked = math.fsum(stages.values())
        stages["rest"] = max(step.made_s - worked, 0.0)
        whole, start = max(worked, step.made_s), step.made_start_s
        for name, seconds in stages.items():
            length = step.made_s * seconds / whole
            words = STAGE_WORDS[name]
            yield LOADER_LANE, words, LOADING_COLOURS[name], start, length, f"{words} {formats.seconds(seconds)}"
            start += length
    handed = step.stages_s.get("hand_over", 0.0)
    if handed > 0:
        words = STAGE_WORDS["hand_over"]
        hover = f"{words} {formats.seconds(handed)}"
        yield LOADER_LANE, words, LOADING_COLOURS["hand_over"], step.got_s - handed, handed, hover


def _spans(line: Timeline) -> Iterator[Piece]:
    for lane, kind, start, end in zip(
        line.lane.tolist(), line.kind.tolist(), line.start_s.tolist(), line.end_s.tolist(), strict=True
    ):
        words, colour = DEVICE_TIME[KINDS[kind]]
        yield LANE_NAMES[LANES[lane]], words, colour, start, end - start, _span_in_words(kind, lane, end - start)


def _span_in_words(kind: int, lane: int, seconds: float) -> str:
    words, length = DEVICE_TIME[KINDS[kind]][0], formats.seconds(seconds)
    idle = LANES[lane] == "device" and KINDS[kind] != "compute"
    return f"device idle {length}, cause: {words}" if idle else f"{words} {length}"
