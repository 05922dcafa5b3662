"""Charts of where time went, as bars: the device's by cause, a batch's loading by stage, a sample's by transform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.bootstrap import Interval
from vitprof.analysis.timing.gaps import IDLE_CAUSES, Gaps
from vitprof.analysis.timing.loading import Loading, TransformTime
from vitprof.charts import style

NARROW_FRAC = 0.05
"""A piece of a bar below this share has no text in it; the legend shows its share."""
KERNELS = "kernels"
"""Compute without launch bubbles."""


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
        words, colour = style.DEVICE_TIME[name]
        hover = f"idle, cause: {words}"
        if name == "compute":
            words = hover = KERNELS if bubbles > 0 else words
        elif name == "launch_idle":
            hover = f"{words}: the device waited for the next launch inside a step"
        known = (intervals or {}).get(name)
        spread = f" ({_range(known, 100, '%')})" if known is not None and np.isfinite(known.low) else ""
        text = f"{hover}<br>{formats.percent(share)}{spread} of {formats.seconds(gaps.span_s)}"
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
        pieces.append(
            (stage.words, style.LOADING_COLOURS[stage.name], stage.ms.value, formats.percent(stage.frac), text)
        )
    return _one_bar("batch", pieces, f"mean time to load a batch (ms), n = {loading.n:,}")


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
                insidetextfont={"color": style.ink_on(colour)},
                textangle=0,
                constraintext="inside",
                **style.hover_texts([text]),
            )
            for words, colour, length, share, text in pieces
            if length > 0
        ]
    )
    return figure.update_layout(
        barmode="stack",
        margin=style.MARGIN,
        legend=style.LEGEND | {"traceorder": "normal"},
        uniformtext={"minsize": 11, "mode": "hide"},
        showlegend=True,
        xaxis=style.axis(x_title, range=[0, whole] if whole > 0 else None),
        yaxis=style.categories(),
    )


def _range(interval: Interval, scale: float, unit: str) -> str:
    """Returns both ends of an interval in words, rounded alike."""
    return f"{interval.low * scale:.3g} to {interval.high * scale:.3g}{unit}"


NAME_SHOWN = 22
"""Characters of a name beside its bar, so that bars have room on a narrow screen; the hover text has the whole name."""
ROW_PX, AROUND_PX = 28, 76
"""Height of a bar, and of what is above and below all bars."""


def transform_bars(transforms: Sequence[TransformTime]) -> go.Figure:
    """Returns one bar for each transform, in the order of the Compose, labelled with its share of their time."""
    names = [style.plain(t.name) for t in transforms]
    hovers = [
        f"{name}<br>{formats.seconds(t.s_per_sample)} a sample, {formats.percent(t.frac)}, n = {t.calls:,}"
        for name, t in zip(names, transforms, strict=True)
    ]
    bars = go.Bar(
        x=[t.s_per_sample * 1e3 for t in transforms],
        y=names,
        orientation="h",
        text=[formats.percent(t.frac) for t in transforms],
        textposition="outside",
        cliponaxis=False,
        marker={"color": style.LOADING_COLOURS["transform"], "line": {"width": 0}},
        **style.hover_texts(hovers),
    )
    longest = max((t.s_per_sample * 1e3 for t in transforms), default=0.0)
    shown = [style.plain(t.name if len(t.name) <= NAME_SHOWN else t.name[: NAME_SHOWN - 1] + "…") for t in transforms]
    return go.Figure(bars).update_layout(
        margin={"l": 8, "r": 40, "t": 8, "b": 44},
        showlegend=False,
        height=AROUND_PX + ROW_PX * len(names),
        xaxis=style.axis("mean time for each sample (ms)", range=[0, longest * 1.05 or 1], fixedrange=True),
        yaxis=style.axis("transform", **style.categories(autorange="reversed", automargin=True, showgrid=False))
        | {"tickvals": names, "ticktext": shown},
    )
