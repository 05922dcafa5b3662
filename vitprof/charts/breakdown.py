"""Charts of where time went, as bars: the device's by cause, loading by stage, a sample's by transform, headroom."""

import math
from collections.abc import Mapping, Sequence

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
    """Returns where the device's time went, as one bar of 100%: compute (kernels and launch bubbles, where these are
    known) and the causes of its idle time; `intervals` are those of `idle_interval`.
    """
    shares = dict(zip(("compute", *IDLE_CAUSES), gaps.shares().values(), strict=True))
    bubbles = gaps.launch_idle_frac
    if bubbles > 0:
        shares = {
            "compute": max(shares.pop("compute") - bubbles, 0.0),
            "launch_idle": bubbles,
        } | shares
    pieces = []
    for name, share in shares.items():
        words, colour = style.DEVICE_TIME[name]
        hover = f"idle, cause: {words}"
        if name == "compute":
            words = hover = "kernels" if bubbles > 0 else words
        elif name == "launch_idle":
            hover = f"{words}: the device waited for the next launch inside a step"
        spread = _spread((intervals or {}).get(name), 100, "%")
        text = f"{hover}<br>{formats.percent(share)}{spread} of {formats.seconds(gaps.span_s)}"
        pieces.append((words, colour, share * 100, formats.percent(share), text))
    apart = (
        f"; {formats.seconds(gaps.evaluation_ns / 1e9)} of evaluation not counted"
        if gaps.evaluation_ns
        else ""
    )
    return _one_bar("device", pieces, f"share of the device's time (%){apart}")


def loading_bar(loading: Loading) -> go.Figure:
    pieces = []
    for stage in loading.stages:
        if stage.frac >= 0:
            share = formats.percent(stage.frac)
            colour = style.LOADING_COLOURS[stage.name]
            took = f"{formats.seconds(stage.ms.value / 1e3)} a batch{_spread(stage.ms, 1, ' ms')}"
            pieces.append(
                (stage.words, colour, stage.ms.value, share, f"{stage.words}<br>{took}, {share}")
            )
    return _one_bar("batch", pieces, f"mean time to load a batch (ms), n = {loading.n:,}")


def _one_bar(
    name: str, pieces: Sequence[tuple[str, str, float, str, str]], x_title: str
) -> go.Figure:
    pieces = [piece for piece in pieces if piece[2] > 0 and piece[3] != formats.percent(0)]
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
    if interval is None or not math.isfinite(interval.low):
        return ""
    return f" ({interval.low * scale:.3g} to {interval.high * scale:.3g}{unit})"


NAME_SHOWN = 22
"""Characters of a name beside its bar, so that bars have room on a narrow screen; the hover text has the whole name."""
ROW_PX, AROUND_PX = 28, 76
"""Height of a bar, and of what is above and below all bars."""


def transform_bars(transforms: Sequence[TransformTime]) -> go.Figure:
    names = [style.plain(t.name) for t in transforms]
    hovers = [
        f"{name}<br>{formats.seconds(t.s_per_sample)} a sample, {formats.percent(t.frac)}, n = {t.calls:,}"
        for name, t in zip(names, transforms, strict=True)
    ]
    lengths = [t.s_per_sample * 1e3 for t in transforms]
    shares = [formats.percent(t.frac) for t in transforms]
    bars = style.labelled_bars(names, lengths, shares, style.LOADING_COLOURS["transform"], hovers)
    shown = [
        style.plain(t.name if len(t.name) <= NAME_SHOWN else t.name[: NAME_SHOWN - 1] + "…")
        for t in transforms
    ]
    return go.Figure(bars).update_layout(
        margin={"l": 8, "r": 40, "t": 8, "b": 44},
        showlegend=False,
        height=AROUND_PX + ROW_PX * len(names),
        xaxis=style.axis(
            "mean time for each sample (ms)",
            range=[0, max(lengths, default=0) * 1.05 or 1],
            fixedrange=True,
        ),
        yaxis=style.axis(
            "transform", **style.categories(autorange="reversed", automargin=True, showgrid=False)
        )
        | {"tickvals": names, "ticktext": shown},
    )


STAGE_COLOURS = {"transfer": style.H2D, "preparation": style.DATA_WAIT, "storage": style.MEMORY}
JOBS = {"C": "the job (C)", "D": "the job, cold (D)"}


def waterfall(headroom: Headroom, batch_size: int) -> go.Figure:
    """Returns bars in ms a step: anchor A, each stage (grey if it may be nothing), and the slowest anchor."""
    known = [a for a in headroom.anchors if a.n_runs]
    # label, start, cost, colour
    bars: list[tuple[str, float, Anchor | StageCost, str]] = []
    if known:
        label = "data free (A)" if known[0].role == "A" else f"anchor {known[0].role}"
        bars.append((label, 0.0, known[0], style.COMPUTE))
        for stage, before in zip(headroom.parts, known, strict=False):
            colour = (
                STAGE_COLOURS.get(stage.name.rpartition(" and ")[2])
                if stage.distinguishable
                else None
            )
            bars.append((stage.name, before.s_per_sample, stage, colour or style.NEUTRAL))
        if len(known) > 1:
            label = JOBS.get(known[-1].role, f"{ANCHOR_WORDS[known[-1].role]} ({known[-1].role})")
            bars.append((label, 0.0, known[-1], style.RUN_COLOURS[0]))
    labels, starts, costs, colours = zip(*bars, strict=True) if bars else ((),) * 4
    texts, hovers = (
        zip(*(_in_words(cost, batch_size) for cost in costs), strict=True) if bars else ((),) * 2
    )
    scale = batch_size * 1e3
    heights, lows, highs = (
        [getattr(c, n) * scale for c in costs] for n in ("s_per_sample", "low", "high")
    )
    bases = [start * scale for start in starts]
    # Above the error bars, which would cross a bar's own text.
    tops = [
        base + np.fmax(height, high)
        for base, height, high in zip(bases, heights, highs, strict=True)
    ]
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
    title = "time of a step (ms)" + (", simulated device" if headroom.simulated else "")
    return go.Figure([bar, words] if known else []).update_layout(
        margin=style.MARGIN,
        showlegend=False,
        xaxis={"type": "category"},
        yaxis=style.axis(title, rangemode="tozero"),
    )


def _in_words(cost: Anchor | StageCost, batch: int) -> tuple[str, str]:
    step, low, high = (formats.seconds(v * batch) for v in (cost.s_per_sample, cost.low, cost.high))
    spread = f"{step} a step ({low} to {high})"
    if isinstance(cost, Anchor):
        speed = formats.number(1 / cost.s_per_sample, "samples/s")
        runs = f"{cost.n_steps} steps of {formats.count(cost.n_runs, 'run')}"
        return step, f"anchor {cost.role}: {spread}<br>{speed}<br>{runs}"
    if not cost.distinguishable:
        return "not distinguishable", f"{cost.name}: not distinguishable from nothing<br>{spread}"
    return f"+{step}", f"{cost.name}: {spread}<br>{formats.percent(cost.share)} of the slowest"
