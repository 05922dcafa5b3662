"""Lanes of the loop, the copy and the device: what each did step by step, and the chain of one
batch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.analysis.timing.timeline import KINDS, LANES, OneStep, Timeline
from vitprof.charts.style import (
    DEVICE_TIME,
    LOADING_COLOURS,
    REFERENCE,
    WITH_LEGEND,
    axis,
    categories,
    hover_texts,
)

MAX_SHAPES = 500
"""Spans in a time line at most: more are slow to draw, and too narrow to be seen."""
LANE_NAMES: dict[str, str] = {
    "host": "loop",
    "copy": "copy",
    "device": "device",
    "launches": "bubbles",
}
"""Lane of a `Timeline` -> its name in charts, from the top down."""
LOADER_LANE = "loader"


@dataclass(frozen=True)
class Piece:
    """What a lane shows from one moment on, in seconds on the monotonic clock."""

    lane: str
    words: str
    colour: str
    start_s: float
    length_s: float
    hover: str
    step: int


def timeline_chart(line: Timeline, *, origin_s: float, mark: int | None = None) -> go.Figure:
    """Returns lanes of the loop, the copy and the device, in which a gap has the colour of its
    cause.

    Launch bubbles have a lane of their own, if there are any. There is one trace for each kind of
    span, so the cost does not depend on their number. It shows whole steps from the first one on,
    at most `MAX_SHAPES` spans; `customdata` is the step's number. `origin_s` is where the x axis
    begins, on the monotonic clock. The step with the number `mark` has a frame around its part of
    the device's time.
    """
    steps, counts = np.unique(line.step, return_counts=True)
    fitting = int((np.cumsum(counts) <= MAX_SHAPES).sum())
    drawn = steps[: max(1, fitting)].tolist()
    pieces = [piece for piece in _spans(line) if piece.step <= drawn[-1]]
    title = "time since the run began (s)"
    if drawn:
        title += f", steps {drawn[0]:,} to {drawn[-1]:,}"
    figure = _lanes(pieces, origin_s, 1.0, title)
    marked = [p for p in pieces if p.step == mark and p.lane == LANE_NAMES["device"]]
    if marked:
        figure.add_shape(
            type="rect",
            x0=min(p.start_s for p in marked) - origin_s,
            x1=max(p.start_s + p.length_s for p in marked) - origin_s,
            y0=0,
            y1=1,
            yref="paper",
            line={"color": REFERENCE, "width": 2},
        )
    return figure


INVISIBLE_FRAC = 0.003
"""Share of the chart's width below which a piece is under two pixels wide and would only lengthen
the legend."""


def batch_chain(
    step: OneStep, line: Timeline, stage_words: Mapping[str, str] = STAGE_WORDS
) -> go.Figure:
    """Returns lanes of the loader, the loop, the copy and the device, in ms since the loop asked
    for the batch.

    `line` has the spans of this step (`analysis.timing.timeline`). A loader goes through its stages
    for each sample; the stages drawn one after the other are their sums, which take as long as the
    batch took. `stage_words`: stage of loading -> its name.
    """
    pieces = [*_made(step, stage_words), *_spans(line)]
    if not pieces:
        return go.Figure()
    whole_s = max(p.start_s + p.length_s for p in pieces) - min(p.start_s for p in pieces)
    visible = [p for p in pieces if p.length_s >= INVISIBLE_FRAC * whole_s]
    return _lanes(visible, step.requested_s, 1e3, "time since the loop asked for the batch (ms)")


def _lanes(pieces: Sequence[Piece], origin_s: float, scale: float, x_title: str) -> go.Figure:
    kinds: dict[str, list[Piece]] = {}
    for piece in pieces:
        kinds.setdefault(piece.words, []).append(piece)
    figure = go.Figure()
    for words, of_kind in kinds.items():
        figure.add_bar(
            x=np.array([p.length_s for p in of_kind]) * scale,
            base=(np.array([p.start_s for p in of_kind]) - origin_s) * scale,
            y=[p.lane for p in of_kind],
            orientation="h",
            name=words,
            marker={"color": of_kind[0].colour, "line": {"width": 0}},
            **hover_texts([p.hover for p in of_kind]),
            customdata=[p.step for p in of_kind],
        )
    used = {p.lane for p in pieces}
    # Plotly draws the first category at the bottom.
    upwards = reversed((LOADER_LANE, *LANE_NAMES.values()))
    return figure.update_layout(
        barmode="overlay",
        bargap=0.15,
        **WITH_LEGEND,
        hovermode="closest",
        xaxis=axis(x_title),
        yaxis=categories([lane for lane in upwards if lane in used]),
    )


def _made(step: OneStep, stage_words: Mapping[str, str]) -> Iterator[Piece]:
    """Yields the making of the batch, divided in proportion to its stages; then its hand-over to
    the loop.
    """

    def piece(stage: str, start_s: float, length_s: float, took_s: float) -> Piece:
        words = stage_words[stage]
        colour = LOADING_COLOURS[stage]
        hover = f"{words} {formats.seconds(took_s)}"
        return Piece(LOADER_LANE, words, colour, start_s, length_s, hover, step.number)

    if math.isfinite(step.made_s) and step.made_s > 0:
        stages = {name: s for name, s in step.stages_s.items() if name != "hand_over" and s > 0}
        worked = math.fsum(stages.values())
        stages["rest"] = max(step.made_s - worked, 0.0)
        # Threads that make a batch together work longer than it takes: their stages are scaled
        # down.
        whole = max(worked, step.made_s)
        start = step.made_start_s
        for name, seconds in stages.items():
            length = step.made_s * seconds / whole
            yield piece(name, start, length, seconds)
            start += length
    handed = step.stages_s.get("hand_over", 0.0)
    if handed > 0:
        yield piece("hand_over", step.got_s - handed, handed, handed)


def _spans(line: Timeline) -> Iterator[Piece]:
    # The legend then has the same order in every chart.
    by_kind = np.argsort(line.kind, kind="stable")
    columns = (line.step, line.lane, line.kind, line.start_s, line.end_s)
    rows = zip(*(column[by_kind].tolist() for column in columns), strict=True)
    for step, lane, kind, start, end in rows:
        words, colour = DEVICE_TIME[KINDS[kind]]
        took = formats.seconds(end - start)
        hover = f"{words} {took}"
        if LANES[lane] == "device" and KINDS[kind] != "compute":
            hover = f"device idle {took}, cause: {words}"
        yield Piece(
            LANE_NAMES[LANES[lane]],
            words,
            colour,
            start,
            end - start,
            f"step {step:,}<br>{hover}",
            step,
        )
