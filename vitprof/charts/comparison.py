"""Charts of ended runs side by side: lines, bars, distributions, and what devices did over time.

A run has the same colour in each, by its place among the runs.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from vitprof import formats
from vitprof.analysis.arrays import Floats, Interval
from vitprof.analysis.compare.comparison import Distribution
from vitprof.analysis.timing.activity import ACTIVITIES, Strip
from vitprof.charts import style
from vitprof.charts.talk import filled, joined, outline

Numbers = Floats | NDArray[np.float32]

AXIS_CHARS = 20
"""Characters in a line of a run's name on an axis."""
DASHES = ("solid", "dash", "dot", "dashdot")


def run_line(place: int, **more: Any) -> dict[str, Any]:
    """Returns the line style of the run at this place: eight colours, then the same again with
    other dashes.
    """
    turn, colour = divmod(place, len(style.RUN_COLOURS))
    return {
        "color": style.RUN_COLOURS[colour],
        "dash": DASHES[turn % len(DASHES)],
        "width": 1.5,
        **more,
    }


def on_axis(name: str) -> str:
    """Returns a run's name beside its bar, in short lines: on a phone the bar needs the room."""
    lines = textwrap.wrap(name, AXIS_CHARS, max_lines=3, placeholder="…")
    return "<br>".join(style.plain(line) for line in lines)


def overlay(
    series: Sequence[tuple[str, Numbers, Numbers]],
    *,
    x_title: str,
    y_title: str,
    hover: str = "%{y:.4~g}",
    **more: Any,
) -> go.Figure:
    """Returns one line for each run: (name, x, y). `hover` is Plotly's template for a point."""
    lines = [
        go.Scatter(
            x=x,
            y=y,
            name=style.plain(name),
            mode="lines",
            line=run_line(place),
            hovertemplate=hover,
            **more,
        )
        for place, (name, x, y) in enumerate(series)
    ]
    axes = {"xaxis": style.axis(x_title), "yaxis": style.axis(y_title)}
    return go.Figure(lines).update_layout(style.WITH_LEGEND, hovermode="x unified", **axes)


def shares(
    names: Sequence[str],
    parts: Sequence[tuple[str, str, Sequence[float]]],
    *,
    x_title: str = "mean time of a step (ms)",
    unit: str = " ms",
) -> go.Figure:
    """Returns stacked horizontal bars, one for each run; a part is (name, colour, length for each
    run in `unit`).
    """
    bars = [
        go.Bar(
            y=[on_axis(n) for n in names],
            x=list(values),
            name=part,
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"%{{y}}<br>{part}: %{{x:.3~g}}{unit}<extra></extra>",
        )
        for part, colour, values in parts
    ]
    return go.Figure(bars).update_layout(
        style.WITH_LEGEND,
        barmode="stack",
        margin_l=16,
        legend_traceorder="normal",
        xaxis=style.axis(x_title),
        yaxis=style.categories(autorange="reversed", automargin=True),
    )


def changes(bars: Sequence[tuple[str, str, Interval]], *, x_title: str, unit: str) -> go.Figure:
    """Returns a horizontal bar for each (words, colour, change in `unit` with its interval): to the
    left of 0 for time saved, to the right for time added.
    """
    values = [change.value for _, _, change in bars]
    texts = [change_in_words(change, unit) for _, _, change in bars]
    hovers = [f"{words}: {text}" for (words, _, _), text in zip(bars, texts, strict=True)]
    trace = go.Bar(
        # a figure beside its bar would be cut where the bar ends at the edge of a narrow chart
        y=[f"{words}<br>{text}" for (words, _, _), text in zip(bars, texts, strict=True)],
        x=values,
        orientation="h",
        marker={"color": [colour for _, colour, _ in bars], "line": {"width": 0}},
        **style.hover_texts(hovers),
    )
    ends = [min(0.0, *values), max(0.0, *values)]
    room = BEYOND_FRAC * (ends[1] - ends[0] or 1.0)
    return go.Figure(trace).update_layout(
        margin=style.MARGIN | {"l": 16, "t": 6},
        showlegend=False,
        xaxis=style.axis(x_title, range=[ends[0] - room, ends[1] + room])
        | {"zeroline": True, "zerolinecolor": style.NEUTRAL},
        yaxis=style.categories(autorange="reversed", automargin=True),
    )


BEYOND_FRAC = 0.03
"""Room beyond the longest bars, as a share of the axis."""


SMALLEST = 0.001
"""Change in ms, or us a sample, below which it is 0 for a reader: clocks are not as fine."""


def change_in_words(change: Interval, unit: str) -> str:
    """Returns a change with its sign and half of its 95% interval: "-20.9 ms (± 0.3)"."""
    if abs(change.value) < SMALLEST:
        return f"0 {unit}"
    words = formats.number(abs(change.value), unit)
    shown = words.partition(" ")[0]
    if not float(shown.replace(",", "")):
        return words
    words = ("+" if change.value > 0 else "\u2212") + words
    decimals = len(shown.partition(".")[2])
    reach = f"{change.high - change.value:.{decimals}f}"
    # too small for the figure's own digits, or not known
    return f"{words} (± {reach})" if float(reach) > 0 else words


STRIP_FRAC = 0.85
"""Height of a run's strip over the distance from one to the next."""


def activity_strips(
    names: Sequence[str], strips: Sequence[Strip], *, since: str = "training began"
) -> go.Figure:
    """Returns a strip for each run, in which a column shows which share of it the device computed,
    waited for data, or did neither.

    The cost does not depend on the length of the runs.
    """
    figure = go.Figure()
    for at, activity in enumerate(ACTIVITIES):
        words, colour = style.ACTIVITY[activity]
        outlines = [outline(strip, at, (row, row + STRIP_FRAC)) for row, strip in enumerate(strips)]
        x, y = joined(outlines)
        figure.add_scatter(
            x=x.astype(np.float32), y=y.astype(np.float32), name=words, **filled(colour)
        )
    shown = [on_axis(name) for name in names]
    middles = [row + STRIP_FRAC / 2 for row in range(len(shown))]
    rows = {"tickvals": middles, "ticktext": shown, "range": [max(len(shown), 1), 0]}
    return figure.update_layout(
        style.WITH_LEGEND,
        margin_l=16,
        hovermode=False,
        xaxis=style.axis(f"time since {since} (s)"),
        yaxis=style.axis("", automargin=True, showgrid=False, fixedrange=True, **rows),
    )


FLOOR_MS = 1e-3
"""A logarithmic axis has no place for 0, so waits below a microsecond are drawn at one.

Python's clock takes 50 to 100 ns to read, so shorter waits would mean little."""
MARKS = (("half of the steps", 0.5, "circle"), ("95% of the steps", 0.95, "diamond"))
"""What is marked on each curve: (in words, share, symbol)."""


def ecdf(runs: Sequence[tuple[str, Distribution]]) -> go.Figure:
    """Returns a step curve for each run, of values in seconds, with its median and 95th percentile
    marked.
    """
    figure = go.Figure()
    for place, (name, waits) in enumerate(runs):
        if not waits.n:
            continue
        shown = style.plain(name)
        ms = np.maximum(waits.values * 1e3, FLOOR_MS)
        # The curve begins at the bottom, at its first value. float32 halves what is sent.
        figure.add_scatter(
            x=np.concatenate([ms[:1], ms]).astype(np.float32),
            y=np.concatenate([[0.0], waits.share * 100]).astype(np.float32),
            name=shown,
            legendgroup=str(place),
            mode="lines",
            line=run_line(place, shape="hv"),
            hovertemplate=f"{shown}<br>%{{y:.3~g}}% of its steps waited at most %{{x:.3~g}} ms<extra></extra>",
        )
        values = (waits.median, waits.p95)
        hovers = [
            f"{shown}<br>{words} waited at most {formats.seconds(value)}"
            for (words, _, _), value in zip(MARKS, values, strict=True)
        ]
        mark = {
            "color": run_line(place)["color"],
            "size": 10,
            "symbol": [symbol for _, _, symbol in MARKS],
        }
        figure.add_scatter(
            x=[max(value * 1e3, FLOOR_MS) for value in values],
            y=[share * 100 for _, share, _ in MARKS],
            legendgroup=str(place),
            showlegend=False,
            mode="markers",
            marker=mark | {"line": {"color": "white", "width": 1}},
            **style.hover_texts(hovers),
        )
    if figure.data:
        # What the symbols mean, in the legend, without a run's colour.
        for words, _, symbol in MARKS:
            mark = {"color": style.NEUTRAL, "size": 10, "symbol": symbol}
            figure.add_scatter(
                x=[None], y=[None], name=words, mode="markers", marker=mark, hoverinfo="skip"
            )
    return figure.update_layout(
        style.WITH_LEGEND,
        hovermode="closest",
        xaxis=style.axis("data wait (ms), logarithmic", type="log"),
        yaxis=style.axis("steps that waited at most this long (%)", range=[-2, 102]),
    )
