"""Charts of where time went, as bars: the device's by cause, a batch's loading by stage, a sample's
by transform.

The waterfall shows what each stage of loading adds to a step (headroom).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Interval
from vitprof.analysis.timing.gaps import IDLE_CAUSES, Gaps
from vitprof.analysis.timing.loading import Loading, TransformTime
from vitprof.analysis.verdict.headroom import ANCHOR_WORDS, Anchor, Headroom, StageCost
from vitprof.charts import style

NARROW_FRAC = 0.05
"""A piece of a bar below this share has no text in it; the legend shows its share."""


def device_time(gaps: Gaps, intervals: Mapping[str, Interval] | None = None) -> go.Figure:
    """Returns where the device's time went, as one bar of 100%: compute, and the causes of its idle
    time.

    If launch bubbles are known and there are any, compute is divided into kernels and bubbles.
    `intervals` (`TrainingTime.intervals`) adds 95% intervals to the hover texts.
    """
    shares = dict(zip(("compute", *IDLE_CAUSES), gaps.shares().values(), strict=True))
    bubbles = gaps.launch_idle_frac
    if bubbles > 0:
        kernels = max(shares.pop("compute") - bubbles, 0.0)
        shares = {"compute": kernels, "launch_idle": bubbles} | shares
    pieces = []
    for name, share in shares.items():
        words, colour = style.DEVICE_TIME[name]
        hover = f"idle, cause: {words}"
        if name == "compute":
            if bubbles > 0:
                words = "kernels"
            hover = words
        elif name == "launch_idle":
            hover = f"{words}: the device waited for the next launch inside a step"
        spread = _spread((intervals or {}).get(name), 100, "%")
        text = f"{hover}<br>{formats.percent(share)}{spread} of {formats.seconds(gaps.span_s)}"
        pieces.append((words, colour, share * 100, formats.percent(share), text))
    title = "share of the device's time (%)"
    if gaps.evaluation_ns:
        title += f"; {formats.seconds(gaps.evaluation_ns / 1e9)} of evaluation not counted"
    return _one_bar("device", pieces, title)


def loading_bar(loading: Loading) -> go.Figure:
    """Returns where the time of loading a batch goes, in milliseconds, as one bar of the stages
    that are known.
    """
    pieces = []
    for stage in loading.stages:
        # NaN where a stage is not known
        if stage.frac >= 0:
            share = formats.percent(stage.frac)
            colour = style.LOADING_COLOURS[stage.name]
            took = f"{formats.seconds(stage.ms.value / 1e3)} a batch{_spread(stage.ms, 1, ' ms')}"
            hover = f"{stage.words}<br>{took}, {share}"
            pieces.append((stage.words, colour, stage.ms.value, share, hover))
    return _one_bar("batch", pieces, f"mean time to load one of {loading.n:,} batches (ms)")


def _one_bar(
    name: str, pieces: Sequence[tuple[str, str, float, str, str]], x_title: str
) -> go.Figure:
    """Returns one stacked bar of (name, colour, length, share in words, hover text), without those
    of about 0.
    """
    nothing = formats.percent(0)
    pieces = [
        (words, colour, length, share, text)
        for words, colour, length, share, text in pieces
        if length > 0 and share != nothing
    ]
    whole = sum(length for _, _, length, _, _ in pieces)
    bars = [
        go.Bar(
            y=[name],
            x=[length],
            name=f"{words} {share}",
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            text=[f"{words}<br>{share}" if length > NARROW_FRAC * whole else ""],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": style.ink_on(colour)},
            textangle=0,
            constraintext="inside",
            **style.hover_texts([text]),
        )
        for words, colour, length, share, text in pieces
    ]
    return go.Figure(bars).update_layout(
        style.WITH_LEGEND,
        barmode="stack",
        legend_traceorder="normal",
        uniformtext={"minsize": 11, "mode": "hide"},
        xaxis=style.axis(x_title, range=[0, whole] if whole > 0 else None),
        yaxis=style.categories(),
    )


def _spread(interval: Interval | None, scale: float, unit: str) -> str:
    """Returns both ends of an interval in parentheses, rounded alike; "" if it is not known."""
    if interval is None or not math.isfinite(interval.low):
        return ""
    return f" ({interval.low * scale:.3g} to {interval.high * scale:.3g}{unit})"


NAME_SHOWN = 22
"""Characters of a name beside its bar, so that bars have room on a narrow screen; the hover text
has the whole name."""
ROW_PX = 28
"""Height of a bar."""
AROUND_PX = 76
"""Height of what is above and below all bars."""


def _cpu(transform: TransformTime) -> str:
    """Returns the CPU time of a transform; "" where it is not known."""
    cpu_s = transform.cpu_s_per_sample
    return "" if math.isnan(cpu_s) else f", CPU time {formats.seconds(cpu_s)}"


def transform_bars(transforms: Sequence[TransformTime]) -> go.Figure:
    """Returns one bar for each transform, in the order of the Compose, labelled with its share of
    their time.
    """
    names = [style.plain(t.name) for t in transforms]
    hovers = [
        f"{name}<br>{formats.seconds(t.s_per_sample)} a sample, {formats.percent(t.frac)}{_cpu(t)}, {t.calls:,} calls"
        for name, t in zip(names, transforms, strict=True)
    ]
    lengths = [t.s_per_sample * 1e3 for t in transforms]
    shares = [formats.percent(t.frac) for t in transforms]
    bars = style.labelled_bars(names, lengths, shares, style.LOADING_COLOURS["transform"], hovers)
    shown = [style.plain(_cut(t.name)) for t in transforms]
    named = style.categories(autorange="reversed", automargin=True, showgrid=False)
    # Where nothing took time, an axis from 0 to 0 would be one that Plotly chooses.
    longest = max(lengths, default=0) * 1.05 or 1
    return go.Figure(bars).update_layout(
        margin={"l": 8, "r": 40, "t": 8, "b": 44},
        showlegend=False,
        height=AROUND_PX + ROW_PX * len(names),
        xaxis=style.axis(
            "mean time for each sample (ms)",
            range=[0, longest],
            fixedrange=True,
        ),
        yaxis=style.axis("transform", **named) | {"tickvals": names, "ticktext": shown},
    )


def _cut(name: str) -> str:
    if len(name) <= NAME_SHOWN:
        return name
    return f"{name[: NAME_SHOWN - 1]}…"


STAGE_COLOURS = {
    "transfer": style.H2D,
    "preparation": style.DATA_WAIT,
    "storage": style.LOADING_COLOURS["read"],
}
"""Last stage of a part of the headroom -> its colour."""
JOBS = {"C": "the job (C)", "D": "the job, cold (D)"}
"""Role of an anchor that is the job itself -> its words."""


def waterfall(headroom: Headroom, batch_size: int) -> go.Figure:
    """Returns bars in milliseconds a step: anchor A, what each stage adds, and the slowest anchor.

    Stages are transfer, preparation and storage. Error bars are 95% intervals. A stage that cannot
    be told from nothing is grey and says so. Without an anchor that was measured, the chart is
    empty.
    """
    known = [a for a in headroom.anchors if a.n_runs]
    title = "time of a step (ms)"
    if headroom.simulated:
        title += ", simulated device"
    empty = go.Figure().update_layout(
        margin=style.MARGIN,
        showlegend=False,
        xaxis={"type": "category"},
        yaxis=style.axis(title, rangemode="tozero"),
    )
    if not known:
        return empty
    bars = _waterfall_bars(headroom, known)
    labels = [bar.label for bar in bars]
    colours = [bar.colour for bar in bars]
    in_words = [_in_words(bar.cost, batch_size) for bar in bars]
    texts = [text for text, _ in in_words]
    hovers = [hover for _, hover in in_words]
    # Seconds of a sample to milliseconds of a step.
    scale = batch_size * 1e3
    heights = [bar.cost.s_per_sample * scale for bar in bars]
    lows = [bar.cost.low * scale for bar in bars]
    highs = [bar.cost.high * scale for bar in bars]
    bases = [bar.start_s * scale for bar in bars]
    # Above the error bars, which would cross a bar's own text.
    tops = np.array(
        [
            base + np.fmax(height, high)
            for base, height, high in zip(bases, heights, highs, strict=True)
        ]
    )
    tops += ABOVE_FRAC * np.nanmax(tops)
    error = style.whiskers(heights, lows, highs, color=style.NEUTRAL)
    bar = go.Bar(
        x=labels,
        y=heights,
        base=bases,
        marker_color=colours,
        error_y=error,
        **style.hover_texts(hovers),
    )
    words = go.Scatter(
        x=labels, y=tops, text=texts, mode="text", textposition="top center", hoverinfo="skip"
    )
    return empty.add_traces([bar, words])


ABOVE_FRAC = 0.015
"""Room between an error bar and the figure above it, as a share of the chart's height."""


@dataclass(frozen=True)
class _Bar:
    """A bar of the waterfall."""

    label: str
    start_s: float
    """Where it begins, in seconds of a sample."""
    cost: Anchor | StageCost
    colour: str


def _waterfall_bars(headroom: Headroom, known: Sequence[Anchor]) -> list[_Bar]:
    first = known[0]
    label = "data free (A)" if first.role == "A" else f"anchor {first.role}"
    bars = [_Bar(label, 0.0, first, style.COMPUTE)]
    for stage, before in zip(headroom.parts, known, strict=False):
        colour = style.NEUTRAL
        if stage.distinguishable:
            # A part of two stages, where the anchor between them is missing, has the last one's
            # colour.
            colour = STAGE_COLOURS.get(stage.name.rpartition(" and ")[2], style.NEUTRAL)
        bars.append(_Bar(stage.name, before.s_per_sample, stage, colour))
    if len(known) > 1:
        last = known[-1]
        label = JOBS.get(last.role, f"{ANCHOR_WORDS[last.role]} ({last.role})")
        bars.append(_Bar(label, 0.0, last, style.REFERENCE))
    return bars


def _in_words(cost: Anchor | StageCost, batch: int) -> tuple[str, str]:
    """Returns the text above a bar, and its hover text."""
    step = formats.seconds(cost.s_per_sample * batch)
    low = formats.seconds(cost.low * batch)
    high = formats.seconds(cost.high * batch)
    spread = f"{step} a step ({low} to {high})"
    if isinstance(cost, Anchor):
        speed = formats.number(1 / cost.s_per_sample, "samples/s")
        runs = f"{cost.n_steps} steps of {formats.count(cost.n_runs, 'run')}"
        return step, f"anchor {cost.role}: {spread}<br>{speed}<br>{runs}"
    if not cost.distinguishable:
        return "not distinguishable", f"{cost.name}: not distinguishable from nothing<br>{spread}"
    return f"+{step}", f"{cost.name}: {spread}<br>{formats.percent(cost.share)} of the slowest"
