"""The chain of one batch: how it was made, waited for, copied and computed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.analysis.timing.timeline import KINDS, LANES, OneStep, Timeline
from vitprof.charts.gaps import LANE_NAMES
from vitprof.charts.style import DEVICE_TIME, LEGEND, LOADING_COLOURS, MARGIN, axis

LOADER_LANE = "loader"
INVISIBLE_FRAC = 0.003
"""Share of the chart's width below which a piece is under two pixels wide and would only lengthen the legend."""
Piece = tuple[str, str, str, float, float, str]
"""Lane, words, colour, start and length in seconds, hover text."""


def batch_chain(step: OneStep, line: Timeline) -> go.Figure:
    """Returns lanes of the loader, the loop, the copy and the device, in milliseconds since the loop asked for the
    batch.

    `line` has the spans of this step (`analysis.timing.timeline`). A loader goes through its stages for each sample;
    the stages drawn one after the other are their sums, which take as long as the batch took.
    """
    lanes = [LOADER_LANE, *(LANE_NAMES[lane] for lane in LANES)]
    pieces = [*_made(step), *_spans(line)]
    if not pieces:
        return go.Figure()
    whole_s = max(start + length for *_, start, length, _ in pieces) - min(start for *_, start, _, _ in pieces)
    figure = go.Figure()
    named: set[str] = set()
    for lane, words, colour, start_s, length_s, told in pieces:
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
            hovertext=[told],
            hovertemplate="%{hovertext}<extra></extra>",
        )
        named.add(words)
    drawn = {bar.y[0] for bar in figure.data}
    return figure.update_layout(
        barmode="overlay",
        bargap=0.2,
        margin=MARGIN,
        legend=LEGEND,
        showlegend=True,
        hovermode="closest",
        xaxis=axis("time since the loop asked for the batch (ms)"),
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [lane for lane in lanes if lane in drawn][::-1],
            "fixedrange": True,
        },
    )


def _made(step: OneStep) -> Iterator[Piece]:
    """Yields the making of the batch, divided in proportion to its stages; then its hand-over to the loop."""
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
        told = f"{words} {formats.seconds(handed)}"
        yield LOADER_LANE, words, LOADING_COLOURS["hand_over"], step.got_s - handed, handed, told


def _spans(line: Timeline) -> Iterator[Piece]:
    for lane, kind, start, end in zip(
        line.lane.tolist(), line.kind.tolist(), line.start_s.tolist(), line.end_s.tolist(), strict=True
    ):
        words, colour = DEVICE_TIME[KINDS[kind]]
        idle = LANES[lane] == "device" and KINDS[kind] != "compute"
        length = formats.seconds(end - start)
        yield (
            LANE_NAMES[LANES[lane]],
            words,
            colour,
            start,
            end - start,
            f"device idle {length}, cause: {words}" if idle else f"{words} {length}",
        )
