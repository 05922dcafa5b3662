"""The waterfall of headroom: what a step takes with free data, and what each stage of loading adds."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.verdict.headroom import ANCHOR_WORDS, Anchor, Headroom, StageCost
from vitprof.charts.style import COMPUTE, DATA_WAIT, H2D, MARGIN, NEUTRAL, RUN_COLOURS, axis, hover_texts, whiskers

STORAGE_COLOUR = RUN_COLOURS[1]
STAGE_COLOURS = {"transfer": H2D, "preparation": DATA_WAIT, "storage": STORAGE_COLOUR}
FREE_LABEL, JOB_LABEL = "data free (A)", "the job"


def waterfall(headroom: Headroom, batch_size: int) -> go.Figure:
    """Returns bars in milliseconds a step: anchor A, what transfer, preparation and storage add, and the slowest
    anchor.

    Error bars are 95% intervals. A stage that cannot be told from nothing is grey and says so.
    """
    known = [a for a in headroom.anchors if a.n_runs]
    # label, start, cost, colour, text, hover text
    bars: list[tuple[str, float, Anchor | StageCost, str, str, str]] = []
    if known:
        label = FREE_LABEL if known[0].role == "A" else f"anchor {known[0].role}"
        bars.append((label, 0.0, known[0], COMPUTE, *_of(known[0], batch_size)))
        for stage, before in zip(headroom.stages, known, strict=False):
            colour = STAGE_COLOURS.get(stage.name.rpartition(" and ")[2], NEUTRAL) if stage.distinguishable else NEUTRAL
            bars.append((stage.name, before.s_per_sample, stage, colour, *_of_stage(stage, batch_size)))
        if len(known) > 1:
            slowest = known[-1]
            jobs = {"C": f"{JOB_LABEL} (C)", "D": f"{JOB_LABEL}, cold (D)"}
            label = jobs.get(slowest.role, f"{ANCHOR_WORDS[slowest.role]} ({slowest.role})")
            bars.append((label, 0.0, slowest, RUN_COLOURS[0], *_of(slowest, batch_size)))
    labels, starts, costs, colours, texts, hovers = zip(*bars, strict=True) if bars else ((),) * 6
    scale = batch_size * 1e3
    heights = [cost.s_per_sample * scale for cost in costs]
    bar = go.Bar(
        x=labels,
        y=heights,
        base=[start * scale for start in starts],
        marker_color=colours,
        error_y=whiskers(heights, [c.low * scale for c in costs], [c.high * scale for c in costs], color=NEUTRAL),
        **hover_texts(hovers),
    )
    # Above the error bars, which would cross a bar's own text.
    tops = [
        (start + (cost.high if math.isfinite(cost.high) else cost.s_per_sample)) * scale
        for start, cost in zip(starts, costs, strict=True)
    ]
    words = go.Scatter(x=labels, y=tops, text=texts, mode="text", textposition="top center", hoverinfo="skip")
    figure = go.Figure([bar, words] if known else [])
    title = "time of a step (ms)" + (", simulated device" if headroom.simulated else "")
    return figure.update_layout(
        margin=MARGIN,
        showlegend=False,
        xaxis={"type": "category"},
        yaxis=axis(title, rangemode="tozero"),
    )


def _of(anchor: Anchor, batch: int) -> tuple[str, str]:
    """Returns the text at the bar of an anchor, and its hover text."""
    low, high = (formats.seconds(v * batch) for v in (anchor.low, anchor.high))
    step = formats.seconds(anchor.s_per_sample * batch)
    speed = formats.number(1 / anchor.s_per_sample, "samples/s")
    runs = f"{anchor.n_steps} steps of {formats.count(anchor.n_runs, 'run')}"
    return step, f"anchor {anchor.role}: {step} a step ({low} to {high})<br>{speed}<br>{runs}"


def _of_stage(stage: StageCost, batch: int) -> tuple[str, str]:
    """Returns the text at the bar of a stage, and its hover text."""
    low, high = (formats.seconds(v * batch) for v in (stage.low, stage.high))
    cost = formats.seconds(stage.s_per_sample * batch)
    if not stage.distinguishable:
        return (
            "not distinguishable",
            f"{stage.name}: not distinguishable from nothing<br>{cost} a step ({low} to {high})",
        )
    return f"+{cost}", f"{stage.name}: {cost} a step ({low} to {high})<br>{formats.percent(stage.share)} of the slowest"
