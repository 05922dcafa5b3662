"""Charts of a running job: the points of a span of it, group by group, and their layout.

Groups make it possible that a refresh sends new ones only. A run that has ended is drawn by the
same functions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.timing.gaps import IDLE_CAUSES
from vitprof.analysis.timing.timeline import group_size, min_max, slices
from vitprof.charts import style


@dataclass(frozen=True)
class Points:
    """The points of one trace for some groups; `text` is hover text, one for each point."""

    x: Floats
    y: Floats
    text: Sequence[str] | None = None


Builder = Callable[[Series, float, int, int, int], list[Points]]
"""(series, origin on the monotonic clock, start index, stop index, group size) -> points for each
trace."""


# Kinds of the device's time: from the bottom of a column up, and as they come in a step.
IN_COLUMNS = (
    "compute",
    "launch_idle",
    "data_wait",
    "h2d",
    "host",
    "epoch_boundary",
    "outside",
    "logging",
    "other",
)
IN_TIME = (
    "logging",
    "outside",
    "epoch_boundary",
    "data_wait",
    "h2d",
    "host",
    "other",
    "compute",
    "launch_idle",
)
LEAST_SHARE = 1e-3
"""Share of a column below which nothing can be seen of a part."""


def gap_points(series: Series, origin: float, start: int, stop: int, k: int) -> list[Points]:
    """Returns the points of the gap chart, by trace: the loop's waits, and the device's time by kind.

    Single steps (`k` is 1) have their kinds one after another. A column of `k` steps has them as
    shares of its height; what is drawn later covers what was drawn before. Of the loop's waits for
    data there are all, and the exposed ones.
    """
    s = slices(series, origin, start, stop, k)
    begin = s.start_s + s.other_s
    # Shares are of it: a step of no length has none.
    span = np.maximum(s.idle_s + s.busy_s, 1e-9)
    full = np.ones(len(span))
    parts = dict(zip(IDLE_CAUSES, s.causes_s, strict=True))
    parts |= {"compute": s.busy_s - s.launch_idle_s, "launch_idle": s.launch_idle_s}
    numbers = zip(s.first_step.tolist(), s.n_steps.tolist(), strict=True)
    labels = [f"step {a:,}" if n == 1 else f"steps {a:,} to {a + n - 1:,}" for a, n in numbers]

    def boxes(left: Floats, right: Floats, height: Floats, words: str, took: Floats) -> Points:
        """Returns two points for each box that can be seen: where it begins, with its height, and
        where it ends.
        """
        drawn = np.flatnonzero((height > 0) & (took > LEAST_SHARE * span))
        x = np.stack([left[drawn], right[drawn]], axis=1).ravel()
        y = np.stack([height[drawn], np.zeros(len(drawn))], axis=1).ravel()
        texts = [f"{labels[at]}<br>{words} {formats.seconds(took[at])}" for at in drawn.tolist()]
        # Both points of a box have its text.
        return Points(x, y, [text for text in texts for _ in range(2)])

    drawn = dict[str, Points]()
    left = begin
    height = np.zeros(len(span))
    for kind in IN_TIME if k == 1 else IN_COLUMNS:
        words = style.DEVICE_TIME[kind][0]
        if kind == "compute":
            words = "device busy"
        elif kind != "launch_idle":
            words = f"device idle, {words}"
        if k == 1:
            drawn[kind] = boxes(left, left + parts[kind], full, words, parts[kind])
            left = left + parts[kind]
        else:
            height = height + parts[kind] / span
            drawn[kind] = boxes(begin, s.end_s, height, words, parts[kind])
    hidden = np.where(s.wait_s - s.exposed_wait_s > LEAST_SHARE * span, s.wait_s, 0.0)
    exposed = s.exposed_wait_s
    if k == 1:
        requested_s = series["t_start_s"][start:stop] - origin
        # A wait may begin while the device still works: it is exposed from that work's end on.
        lost_from = np.fmax(requested_s, begin)
        waited = boxes(requested_s, requested_s + s.wait_s, full, "data wait", hidden)
        lost = boxes(lost_from, lost_from + exposed, full, "exposed data wait", exposed)
    else:
        waited = boxes(begin, s.end_s, hidden / span, "data wait", hidden)
        lost = boxes(begin, s.end_s, exposed / span, "exposed data wait", exposed)
    other = boxes(s.start_s, begin, full, "other work before it", s.other_s)
    return [waited, lost, other, *(drawn[kind] for kind in reversed(IN_COLUMNS))]


def column_points(*columns: tuple[str, float], over_time: bool, by: str = "") -> Builder:
    """Returns a builder that draws these columns, each multiplied by its scale, over time or over
    positions.

    Of each group it draws the lowest and the highest value: of the column itself, or where `by` is
    lowest and highest.
    """

    def build(series: Series, origin: float, start: int, stop: int, k: int) -> list[Points]:
        points = []
        for name, scale in columns:
            at = min_max(series[by or name], start, stop, k)
            x = series["t_s"][at] - origin if over_time else at.astype(float)
            points.append(Points(x, series[name][at] * scale))
        return points

    return build


MAX_GROUPS = 650
"""Groups in a live chart, at most two points each; the gap chart has fewer.

No trace exceeds 2,000 points."""


@dataclass(frozen=True)
class LiveChart:
    """A live chart: its layout, its traces without data, and the function that makes their points."""

    key: str
    """Its name in code and in the page's elements."""
    title: str
    help: str
    alt: str
    """Its content in words, for screen readers."""
    source: str
    """"steps" or "telemetry"."""
    x: str
    """Column of the source on the x axis; "index" for the position."""
    traces: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    build: Builder
    overview_groups: int = MAX_GROUPS
    """Groups at most for a whole run: enough for half a page's width.

    When the groups of a chart double, all of it is sent. As each chart has its own number, no two
    do so in the same refresh, which stays under 20 kB."""
    max_groups: int = MAX_GROUPS
    """Groups at most for the part that the user zoomed in on."""
    most_single: int = MAX_GROUPS
    """Points of a whole run up to which each is drawn by itself."""

    def group_size(self, n: int, *, zoomed: bool = False) -> int:
        """Returns how many of `n` neighbouring points make a group, a power of two.

        `zoomed`: they are a part of a run, and a third of them is in sight
        (`vitprof.ui.resources.window`).
        """
        if zoomed:
            return group_size(n, self.max_groups)
        least = 1 if n <= self.most_single else 2
        return max(least, group_size(n, self.overview_groups))


def _with_memory_axis(left_axis: dict[str, Any]) -> dict[str, Any]:
    """Returns a layout over time with the axis `left_axis` on the left and memory on the right."""
    memory = style.axis(
        "memory (GiB)",
        overlaying="y",
        side="right",
        rangemode="tozero",
        showgrid=False,
        tickmode="auto",
        nticks=5,
    )
    over_time = style.axis("time since the run began (s)")
    return {
        "xaxis": over_time,
        "yaxis": left_axis,
        "yaxis2": memory,
        "margin": style.MARGIN | {"r": 64},
    }


def _lane(title: str, bottom: float, top: float, **more: Any) -> dict[str, Any]:
    return style.axis(title, domain=[bottom, top], range=[0, 1], fixedrange=True, **more)


def _line(
    name: str, colour: str, unit: str, hover: str = "", line: Any = None, **more: Any
) -> dict[str, Any]:
    hover = hover or f"%{{y:.4~g}} {unit}<extra>{name}</extra>"
    drawn = {"type": "scatter", "mode": "lines", "name": name, "hovertemplate": hover, **more}
    return drawn | {"line": {"color": colour, "width": 1.5} | (line or {})}


def _filled(name: str, colour: str, **more: Any) -> dict[str, Any]:
    line = {"width": 0, "shape": "hv"}
    return _line(
        name, colour, "", "%{text}<extra></extra>", line, fill="tozeroy", fillcolor=colour, **more
    )


def _part(name: str, colour: str) -> dict[str, Any]:
    hover = f"%{{y:.3~g}} ms {name}<extra></extra>"
    line = {"width": 1.5, "shape": "hvh"}
    return _line(name, colour, "ms", hover, line)


# A refresh must not cost more as a run grows, so three figures are bounded.
MOST_LABELS = 3
"""Gaps with a label."""
MOST_LOOKED_AT = 20
"""Gaps that are looked at for that."""
MOST_TOLD_APART = 20_000
"""Steps in sight."""
LONG_GAP = 2.0
"""How long a gap is that has a label, in medians of all gaps."""
LABEL_FRAC = 0.16
"""How far labels are apart, as a share of the axis."""

GAPS = LiveChart(
    key="gaps",
    title="When does the device wait?",
    help="The device's lane: green where it computes, else the colour of what it waited for; grey: evaluation and the "
    "like. The loop's lane: waits for data; a pale one cost no device time. Up to 60 steps are drawn one by one; of "
    "more, each column has the shares of its steps. Drag to zoom, or use Ctrl and the wheel; W and S zoom at the "
    "pointer, A and D move. Double-click to see all.",
    alt="Time line of the device, its idle time in the colour of the cause, and the loop's waits for data",
    source="steps",
    x="compute_start_s",
    # What is drawn later covers what was drawn before.
    traces=(
        _filled("hidden data wait", style.HIDDEN_WAIT, yaxis="y2"),
        _filled("data wait", style.DATA_WAIT, yaxis="y2", showlegend=False),
        _filled("other work", style.EVALUATION),
        *(_filled(*style.DEVICE_TIME[kind]) for kind in reversed(IN_COLUMNS)),
    ),
    layout={
        "xaxis": style.axis("time since the run began (s)", anchor="y2"),
        "yaxis": _lane("device", 0.24, 0.92, tickvals=[]),
        "yaxis2": _lane("loop", 0, 0.16, tickvals=[]),
        "legend": style.LEGEND | {"traceorder": "reversed"},
        "margin": style.MARGIN | {"r": 64},
        "hovermode": "closest",
        # Points are only at the edges: without this a box would have no hover text.
        "hoverdistance": -1,
    },
    build=gap_points,
    # Each column is several pixels wide, and has a few boxes. Zoomed in, 100 steps are in sight.
    overview_groups=160,
    max_groups=300,
    # A phone has 240 pixels for it. A step of less than four is two stripes of a pixel or two, and
    # orange and green that close mix to olive.
    most_single=60,
)
SHARE_TICKS = {"tickvals": [0, 0.5, 1], "ticktext": ["0", "50%", "100%"]}
"""Ticks of the device's lane where a column has the shares of its steps."""

BATCHES = LiveChart(
    key="batches",
    title="Time of each batch",
    help="What the training loop and the device spent on each batch. They overlap: a data wait is hidden while the "
    "device computes. Of more than 650 batches the quickest and slowest of each group of neighbours are drawn.",
    alt="Time of each batch in milliseconds, a line each: data wait, copy to the device, compute",
    source="steps",
    x="index",
    traces=(
        _part("data wait", style.DATA_WAIT),
        _part("H2D", style.H2D),
        _part("compute", style.COMPUTE),
    ),
    layout={
        "xaxis": style.axis("step"),
        "yaxis": style.axis("time (ms)", rangemode="tozero"),
        "hovermode": "x unified",
    },
    build=column_points(
        *((name, 1e3) for name in ("data_wait_s", "h2d_s", "compute_s")),
        over_time=False,
        by="step_s",
    ),
)

LOSSES = LiveChart(
    key="loss",
    title="Training loss",
    help="Loss of each batch (cross-entropy, natural logarithm). With one seed every strategy gives the same curve.",
    alt="Training loss over steps",
    source="steps",
    x="index",
    traces=(_line("loss", style.LOSS, "", connectgaps=True),),
    layout={"xaxis": style.axis("step"), "yaxis": style.axis("loss"), "showlegend": False},
    build=column_points(("loss", 1.0), over_time=False),
    overview_groups=600,
)

GPU = LiveChart(
    key="gpu",
    title="GPU-util and memory",
    help="GPU-util (NVML): the share of the past 1/6 to 1 s in which any kernel ran; 100% does not mean a full GPU. "
    "How full: SM activity, the share of busy multiprocessors, and SM occupancy, the share of their warps in flight "
    "(Hopper and later). For idle time trust the gap chart. Memory in use is that of all processes.",
    alt="GPU utilisation, SM activity and SM occupancy in percent and memory in GiB over time",
    source="telemetry",
    x="t_s",
    traces=(
        _line("GPU-util", style.GPU_UTIL, "%", line={"shape": "vh"}),
        _line("SM activity", style.GPU_UTIL, "%", line={"shape": "vh", "dash": "dash"}),
        _line("SM occupancy", style.GPU_UTIL, "%", line={"shape": "vh", "dash": "dot"}),
        _line("job's memory", style.MEMORY, "GiB", yaxis="y2"),
        _line("memory in use", style.LOSS, "GiB", yaxis="y2", line={"dash": "dot"}),
    ),
    layout=_with_memory_axis(style.axis("GPU-util, SM (%)", range=[0, 105])),
    build=column_points(
        *((f"gpu_{name}_pct", 1.0) for name in ("util", "sm_active", "sm_occupancy")),
        *((f"gpu_mem_{whose}_bytes", 2.0**-30) for whose in ("job", "used")),
        over_time=True,
    ),
    overview_groups=200,
)

CPU = LiveChart(
    key="cpu",
    title="CPU and memory",
    help="CPU use of the job's processes (100% is one core), and their resident memory, in which pages that worker "
    "processes share count once for each process.",
    alt="CPU use of the job in percent of one core and its memory in GiB over time",
    source="telemetry",
    x="t_s",
    traces=(
        _line("CPU of the job", style.GPU_UTIL, "%", line={"shape": "vh"}),
        _line("memory of the job", style.MEMORY, "GiB", yaxis="y2"),
    ),
    layout=_with_memory_axis(style.axis("CPU (% of one core)", rangemode="tozero")),
    build=column_points(("job_cpu_pct", 1.0), ("job_rss_bytes", 2.0**-30), over_time=True),
    overview_groups=240,
)


def gap_notes(
    steps: Series, origin: float, view: tuple[float, float] | None, idle_frac: float
) -> list[dict[str, Any]]:
    """Returns annotations of the gap chart: the device's idle share, and how long the longest gaps
    are.

    The share is at the end of the device's lane. Gaps are those in `view` (None: of the run). They
    have no label if all are about as long, or if there are too many steps in sight.
    """
    notes = []
    if np.isfinite(idle_frac):
        at_end = {
            "xref": "paper",
            "x": 1,
            "xanchor": "left",
            "yref": "y domain",
            "y": 0.5,
            "showarrow": False,
        }
        text = f"<b>{formats.percent(idle_frac)}</b><br>idle"
        notes.append({"text": text, "align": "left", "font": {"size": 15}, "xshift": 6} | at_end)
    end_s = steps["compute_start_s"]
    first = 0
    stop = len(end_s)
    if view is not None:
        first = int(np.searchsorted(end_s, view[0] + origin))
        stop = int(np.searchsorted(end_s, view[1] + origin, "right"))
    gap_s = np.nan_to_num(steps["gap_s"][first:stop])
    if not 0 < len(gap_s) <= MOST_TOLD_APART or not gap_s.any():
        return notes
    least_s = LONG_GAP * np.median(gap_s[gap_s > 0])
    apart_s = LABEL_FRAC * (end_s[stop - 1] - end_s[first])
    labelled: list[float] = []
    for at in np.argsort(-gap_s)[:MOST_LOOKED_AT]:
        # The longest come first: no later one is long enough either. (NaN, where no gap is above
        # 0.)
        if not gap_s[at] > least_s or len(labelled) == MOST_LABELS:
            break
        x = float(end_s[first + at] - origin - gap_s[at] / 2)
        if all(abs(x - other) > apart_s for other in labelled):
            labelled.append(x)
            place = {"x": x, "yref": "y domain", "y": 1, "ax": 0, "ay": -14, "yshift": 1}
            notes.append(
                {"text": formats.seconds(float(gap_s[at])), "arrowwidth": 1, "arrowhead": 2} | place
            )
    return notes


def live_figure(
    chart: LiveChart,
    points: Sequence[Points],
    *,
    each: int = 1,
    notes: Sequence[dict[str, Any]] = (),
    mark: float = math.nan,
) -> dict[str, Any]:
    """Returns the whole figure of a live chart, with `points` for each trace; the arrays stay
    arrays.

    `each`: steps in a column of the gap chart; `notes`: annotations; `mark`: where on the x axis a
    line is drawn. What there is no figure for is in no legend: half a page is too narrow for names
    of nothing. Nor has it an axis of its own, as the memory of a simulated device.
    """
    data = []
    drawn = set[str]()
    layout: dict[str, Any] = {
        "margin": style.MARGIN,
        "legend": style.LEGEND,
        "hovermode": "x",
    } | chart.layout
    for trace, p in zip(chart.traces, points, strict=True):
        filled = trace | {"x": p.x, "y": p.y}
        if p.text is not None:
            filled["text"] = p.text
        if np.isfinite(p.y).any():
            # "y2" is the axis "yaxis2".
            drawn.add("yaxis" + trace.get("yaxis", "y")[1:])
        else:
            filled["showlegend"] = False
        data.append(filled)
    for name in [name for name in layout if name.startswith("yaxis") and name != "yaxis"]:
        layout[name] = layout[name] | {"visible": name in drawn}
    if chart is GAPS and each > 1:
        layout["xaxis"] = style.axis(
            f"time since the run began (s); a column is {each:,} steps", anchor="y2"
        )
        layout["yaxis"] = layout["yaxis"] | SHARE_TICKS
    if notes:
        layout["annotations"] = list(notes)
    if math.isfinite(mark):
        line = {"color": style.NEUTRAL, "width": 1, "dash": "dash"}
        layout["shapes"] = [
            {
                "type": "line",
                "x0": mark,
                "x1": mark,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": line,
            }
        ]
    return {"data": data, "layout": layout}
