"""Charts of a running job: their layout, and the functions that make their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.charts.live_points import Builder, Points, batch_points, gap_points, loss_points, telemetry_points
from vitprof.charts.style import (
    COMPUTE,
    DATA_WAIT,
    EVALUATION,
    GPU_UTIL,
    H2D,
    LAUNCH_IDLE,
    LEGEND,
    LOSS,
    MARGIN,
    MEMORY,
    axis,
)

MAX_GROUPS = 650
"""Groups in a live chart, at most two points each; the gap chart has fewer. No trace exceeds 2,000 points."""
OVERVIEW_GROUPS = 160
"""Groups in the idle-gap chart of a whole run: few enough for each gap to be several pixels wide."""
LOSS_GROUPS, GPU_GROUPS, CPU_GROUPS = 600, 200, 240
"""Groups in the other charts of a whole run: enough for half a page's width. When the groups of a chart double, all of
it is sent; as each chart has its own number, no two do so in the same refresh, which stays under 20 kB."""


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
    rare_axis: str = ""
    """Axis of the layout that stays empty in most runs; hidden, with its traces, if it is empty."""
    overview_groups: int = MAX_GROUPS
    """Groups at most for a whole run."""
    max_groups: int = MAX_GROUPS
    """Groups at most for the part that the user zoomed in on."""


def _beside_memory(left: dict[str, Any]) -> dict[str, Any]:
    """Returns a layout over time with the axis `left` on the left and memory on the right."""
    memory = axis(
        "memory (GiB)", overlaying="y", side="right", rangemode="tozero", showgrid=False, tickmode="auto", nticks=5
    )
    margin = MARGIN | {"r": 64}
    return {"xaxis": axis("time since the run began (s)"), "yaxis": left, "yaxis2": memory, "margin": margin}


def _line(name: str, colour: str, unit: str, **more: Any) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5} | more.pop("line", {})
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "line": line,
        "hovertemplate": f"%{{y:.4~g}} {unit}<extra>{name}</extra>",
        **more,
    }


def _filled(name: str, colour: str, **more: Any) -> dict[str, Any]:
    return _line(name, colour, "", fill="tozeroy", fillcolor=colour, **more) | {
        "line": {"color": colour, "width": 0, "shape": "hv"},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _stacked(name: str, colour: str) -> dict[str, Any]:
    return _line(name, colour, "ms", stackgroup="batch", fillcolor=colour) | {
        "line": {"color": colour, "width": 0, "shape": "hvh"},
        "hovertemplate": f"%{{y:.3~g}} ms {name}<extra></extra>",
    }


GAPS = LiveChart(
    key="gaps",
    title="Where the device idles",
    help="Green: the device computes. Gaps in the green: it idles. Orange beneath: the training loop waits for "
    "data. A gap above orange is time lost to data loading. Pink, where it was measured and there is any: launch "
    "bubbles, the part of the busy time in which the device waited for the next launch, drawn in one piece. Grey: "
    "other work than training steps, such as evaluation. Drag to zoom, down to single steps; double-click to see "
    "everything. Zoomed out, the gaps of neighbouring steps are drawn as one gap of the same total length.",
    alt="Time line of the device: busy in green, idle as gaps; beneath it launch bubbles in pink, where there are any, "
    "and data waits of the training loop in orange",
    source="steps",
    x="compute_start_s",
    traces=(
        _filled("device busy", COMPUTE),
        _filled("data wait", DATA_WAIT, yaxis="y2"),
        _filled("other work", EVALUATION),
        _filled("launch bubbles", LAUNCH_IDLE, yaxis="y3"),
    ),
    layout={
        "xaxis": axis("time since the run began (s)", anchor="y2"),
        "yaxis": axis(
            "device", domain=[0.53, 1], range=[0, 1], tickvals=[0, 1], ticktext=["idle", "busy"], fixedrange=True
        ),
        "yaxis2": axis(
            "loop", domain=[0, 0.32], range=[0, 1], tickvals=[0, 1], ticktext=["", "waits"], fixedrange=True
        ),
        "yaxis3": axis(
            "bubbles", domain=[0.41, 0.5], range=[0, 1], showticklabels=False, showgrid=False, fixedrange=True
        ),
        "hovermode": "closest",
        "hoverdistance": -1,  # points are only at the edges: without this a gap would have no hover text
    },
    build=gap_points,
    rare_axis="yaxis3",
    overview_groups=OVERVIEW_GROUPS,
    max_groups=480,  # four points each
)

BATCHES = LiveChart(
    key="batches",
    title="Time of each batch",
    help="What the training loop and the device spent on each batch. On a GPU a data wait can hide behind compute that "
    "is still queued; what counts is the idle gap. Beyond 650 batches the quickest and the slowest of each group of "
    "neighbours are drawn.",
    alt="Stacked time of each batch in milliseconds: data wait, copy to the device, compute",
    source="steps",
    x="index",
    traces=(_stacked("data wait", DATA_WAIT), _stacked("H2D", H2D), _stacked("compute", COMPUTE)),
    layout={
        "xaxis": axis("step"),
        "yaxis": axis("time (ms)", rangemode="tozero"),
        "hovermode": "x unified",
    },
    build=batch_points,
)

LOSSES = LiveChart(
    key="loss",
    title="Training loss",
    help="Loss of each batch (cross-entropy, natural logarithm). With one seed every strategy gives the same curve.",
    alt="Training loss over steps",
    source="steps",
    x="index",
    traces=(_line("loss", LOSS, ""),),
    layout={"xaxis": axis("step"), "yaxis": axis("loss"), "showlegend": False},
    build=loss_points,
    overview_groups=LOSS_GROUPS,
)

GPU = LiveChart(
    key="gpu",
    title="GPU-util and memory",
    help="NVML's utilisation is the share of the past 1/6 to 1 s in which any kernel ran, so each value describes the "
    "time before it, and 100% does not mean that the GPU was full. How full it was: SM activity, the share of its "
    "multiprocessors that were busy, and SM occupancy, the share of the warps they can hold that were in flight (by "
    "NVML's GPM counters; Hopper and later have them). For idle time trust the gap chart. Memory in use "
    "is that of all processes; the job's own is not available everywhere.",
    alt="GPU utilisation, SM activity and SM occupancy in percent and memory in GiB over time",
    source="telemetry",
    x="t_s",
    traces=(
        _line("GPU-util", GPU_UTIL, "%", line={"shape": "vh"}),
        _line("SM activity", GPU_UTIL, "%", line={"shape": "vh", "dash": "dash"}),
        _line("SM occupancy", GPU_UTIL, "%", line={"shape": "vh", "dash": "dot"}),
        _line("job's memory", MEMORY, "GiB", yaxis="y2"),
        _line("memory in use", LOSS, "GiB", yaxis="y2", line={"dash": "dot"}),
    ),
    layout=_beside_memory(axis("GPU-util, SM (%)", range=[0, 105])),
    build=telemetry_points(
        ("gpu_util_pct", 1.0),
        ("gpu_sm_active_pct", 1.0),
        ("gpu_sm_occupancy_pct", 1.0),
        ("gpu_mem_job_bytes", 2.0**-30),
        ("gpu_mem_used_bytes", 2.0**-30),
    ),
    overview_groups=GPU_GROUPS,
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
        _line("CPU of the job", GPU_UTIL, "%", line={"shape": "vh"}),
        _line("memory of the job", MEMORY, "GiB", yaxis="y2"),
    ),
    layout=_beside_memory(axis("CPU (% of one core)", rangemode="tozero")),
    build=telemetry_points(("job_cpu_pct", 1.0), ("job_rss_bytes", 2.0**-30)),
    overview_groups=CPU_GROUPS,
)


def live_figure(chart: LiveChart, points: Sequence[Points]) -> dict[str, Any]:
    """Returns the whole figure of a live chart, with `points` for each trace; the arrays stay arrays.

    A trace without data is not in the legend: half a page is too narrow for it. An axis without data is hidden, such as
    the memory of a simulated device.
    """
    data, rare = [], chart.rare_axis.replace("axis", "")
    drawn = set[str]()
    layout: dict[str, Any] = {"margin": MARGIN, "legend": LEGEND, "hovermode": "x"} | chart.layout
    for trace, p in zip(chart.traces, points, strict=True):
        is_rare = trace.get("yaxis", "y") == rare
        shown = bool(np.isfinite(p.y).any()) if len(p.y) else not is_rare  # what is empty now may have points soon
        data.append(
            {
                **trace,
                "x": p.x,
                "y": p.y,
                **({"text": p.text} if p.text is not None else {}),
                **({} if shown else {"showlegend": False}),
            }
        )
        drawn |= {trace.get("yaxis", "y")} if shown else set()
    for name in [n for n, a in layout.items() if n == chart.rare_axis or (n == "yaxis2" and "overlaying" in a)]:
        layout[name] = layout[name] | {"visible": name.replace("axis", "") in drawn}
    return {"data": data, "layout": layout}
