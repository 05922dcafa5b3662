"""What faster stages would save, as bars with intervals."""

from collections.abc import Sequence

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Interval
from vitprof.analysis.verdict.causal import WORDS, StageGain
from vitprof.charts import style
from vitprof.charts.breakdown import AROUND_PX

STAGE_PX = 52
"""Height of the two bars of a stage."""


def gain_bars(gains: Sequence[StageGain]) -> go.Figure:
    """Returns two bars for each stage, in this order: the share of a step that is saved where it is a
    quarter faster, and twice as fast."""
    names = [WORDS[gain.stage] for gain in gains]
    bars = [
        _bars(names, "25% faster", [gain.quarter for gain in gains], style.LOADING_COLOURS["read"]),
        _bars(
            names,
            "twice as fast",
            [gain.half for gain in gains],
            style.LOADING_COLOURS["transform"],
        ),
    ]
    named = style.categories(autorange="reversed", automargin=True, showgrid=False)
    return go.Figure(bars).update_layout(
        style.WITH_LEGEND,
        barmode="group",
        height=AROUND_PX + STAGE_PX * len(names),
        xaxis=style.axis("share of a step's time saved", tickformat=".0%", fixedrange=True),
        yaxis=style.axis("", **named),
    )


def _bars(names: Sequence[str], label: str, saved: Sequence[Interval], colour: str) -> go.Bar:
    hovers = [
        f"{name} {label}<br>{formats.percent(one.value)} saved "
        f"({formats.percent(one.low)} to {formats.percent(one.high)})"
        for name, one in zip(names, saved, strict=True)
    ]
    return go.Bar(
        name=label,
        orientation="h",
        y=list(names),
        x=[one.value for one in saved],
        marker={"color": colour, "line": {"width": 0}},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [one.high - one.value for one in saved],
            "arrayminus": [one.value - one.low for one in saved],
        },
        **style.hover_texts(hovers),
    )
