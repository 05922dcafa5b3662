"""Bars of time, time lines and the chain of a batch: the figures they draw are those of the analysis, in few shapes."""

import json
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.utils import PlotlyJSONEncoder

from tests.series import made_steps
from vitprof.analysis.timing import activity
from vitprof.analysis.timing.gaps import Gaps, find_gaps, idle_interval
from vitprof.analysis.timing.loading import loading_of, transform_times
from vitprof.analysis.timing.timeline import one_step, timeline
from vitprof.analysis.verdict.headroom import Anchor, headroom
from vitprof.charts.breakdown import device_time, loading_bar, transform_bars, waterfall
from vitprof.charts.comparison import activity_strips
from vitprof.charts.style import DATA_WAIT, DEVICE_TIME, LOADING_COLOURS, NEUTRAL
from vitprof.charts.timeline import MAX_SHAPES, batch_chain, timeline_chart
from vitprof.config import RunConfig
from vitprof.recording.columns import Phase

ORIGIN = 90.0
COLOURS = dict(DEVICE_TIME.values())


@pytest.fixture
def steps() -> dict[str, np.ndarray]:
    """200 steps in two epochs: 30 ms wait, 10 ms copy, 40 ms compute, launched 60 ms after the batch came."""
    n = 200
    trace: dict[str, np.ndarray] = made_steps(
        np.full(n, 0.03), np.full(n, 0.04), h2d=0.01, epochs=np.arange(n) // 100
    )
    for name in ("t_start_s", "compute_start_s"):
        trace[name][100:] += 1.0
    trace["h2d_start_s"] = trace["compute_start_s"] - 0.01
    trace["host_s"] = np.full(n, 0.05)
    return trace


PHASES = [Phase("evaluate", 108.1, 108.9)]
"""The device ends the first epoch at 108 s and the loop asks for the next batch at 109 s."""


@pytest.fixture
def gaps(steps: Any) -> Gaps:
    unknown = np.full(
        200, np.nan
    )  # where the recorder resumed is not known, so evaluation is in the gaps
    return find_gaps(steps | {"gap_s": unknown}, PHASES)


def valid(figure: go.Figure) -> go.Figure:
    """The figure, if it is one that can be sent to a browser and names its x axis with a unit."""
    json.dumps(figure.to_plotly_json(), cls=PlotlyJSONEncoder)
    assert figure.layout.xaxis.title.text.count("(") >= 1
    return figure


def test_a_time_line_has_a_lane_for_each_of_loop_copy_and_device(steps: Any) -> None:
    line = timeline(steps, PHASES, 98, 103)
    figure = valid(timeline_chart(line, origin_s=ORIGIN, mark=101))
    by_name = {trace.name: trace for trace in figure.data}
    assert all(trace.marker.color == COLOURS[name] for name, trace in by_name.items())
    busy = by_name["compute"]
    assert (set(busy.y), busy.base) == (
        {"device"},
        pytest.approx(steps["compute_start_s"][98:103] - ORIGIN),
    )
    assert (busy.x, busy.hovertext[0]) == (
        pytest.approx(np.full(5, 0.04)),
        "step 98<br>compute 40.0 ms",
    )
    (frame,) = figure.layout.shapes
    at = list(busy.customdata).index(101)
    ends = busy.base + busy.x
    assert (frame.x0, frame.x1) == (pytest.approx(ends[at - 1]), pytest.approx(ends[at])), (
        "its gap too"
    )
    assert not timeline_chart(line, origin_s=ORIGIN, mark=7).layout.shapes
    wait = by_name["data wait"]
    assert sorted(wait.y) == ["device"] * 4 + ["loop"] * 4  # the first of the epoch is the epoch's
    assert "step 99<br>data wait 30.0 ms" in wait.hovertext
    assert "step 99<br>device idle 30.0 ms, cause: data wait" in wait.hovertext
    assert sorted(by_name["H2D"].y) == ["copy"] * 5 + ["device"] * 5
    assert sorted(by_name["evaluation"].y) == ["device", "loop"]
    assert by_name["evaluation"].x == pytest.approx([0.8, 0.8])
    assert figure.layout.xaxis.title.text == "time since the run began (s), steps 98 to 102"


def test_a_time_line_of_many_steps_shows_the_first_of_them_whole(steps: Any) -> None:
    figure = timeline_chart(timeline(steps, PHASES, 0, 200), origin_s=ORIGIN)
    shown = {trace.name: len(trace.x) for trace in figure.data}
    assert MAX_SHAPES - 10 < sum(shown.values()) <= MAX_SHAPES
    assert figure.layout.xaxis.title.text.endswith(f"steps 0 to {shown['compute'] - 1}")
    assert len(figure.data) <= len(DEVICE_TIME)
    assert timeline_chart(timeline(steps, (), 0, 0), origin_s=ORIGIN).data == ()


def test_the_devices_time_is_one_bar_of_a_hundred_percent(gaps: Gaps) -> None:
    assert device_time(find_gaps(made_steps([], []), ())).data == ()
    figure = valid(device_time(gaps, idle_interval(gaps, gaps.index == 100)))
    assert (figure.layout.barmode, sum(trace.x[0] for trace in figure.data)) == (
        "stack",
        pytest.approx(100),
    )
    compute, wait = figure.data[:2]
    assert (compute.name, wait.name) == ("compute 50%", "data wait 37%")
    assert (compute.x[0], wait.marker.color) == (
        pytest.approx(100 * gaps.shares()["busy"]),
        DATA_WAIT,
    )
    assert wait.text[0] == "data wait<br>37%"
    assert wait.hovertext[0].startswith("idle, cause: data wait<br>37% (")
    (boundary,) = (trace for trace in figure.data if trace.name == "epoch starts 1.4%")
    assert boundary.text[0] == ""  # too narrow for words
    assert figure.layout.xaxis.title.text.endswith("800 ms of evaluation not counted")


def test_launch_bubbles_have_a_lane_of_their_own_and_are_no_kernels_in_the_bar(steps: Any) -> None:
    steps["launch_idle_s"][100:] = 0.03
    figure = valid(timeline_chart(timeline(steps, PHASES, 98, 103), origin_s=ORIGIN))
    bubbles = next(trace for trace in figure.data if trace.name == "launch bubbles")
    assert set(bubbles.y) == {"bubbles"}
    assert bubbles.base + bubbles.x == pytest.approx(
        (steps["compute_start_s"] + steps["compute_s"])[100:103] - ORIGIN
    )
    assert bubbles.x == pytest.approx(np.full(3, 0.03))
    assert bubbles.hovertext[0] == "step 100<br>launch bubbles 30.0 ms"
    assert figure.layout.yaxis.categoryarray == ("bubbles", "device", "copy", "loop")
    without = timeline_chart(timeline(steps, PHASES, 50, 60), origin_s=ORIGIN)
    assert without.layout.yaxis.categoryarray == ("device", "copy", "loop")

    gaps = find_gaps(steps, PHASES).only(np.arange(200) >= 100)
    bar = device_time(gaps, idle_interval(gaps, gaps.index == 100))
    kernels, waits = bar.data[:2]
    assert sum(trace.x[0] for trace in bar.data) == pytest.approx(100)
    assert waits.x[0] == pytest.approx(3 * kernels.x[0]), "30 ms of each 40 of compute"
    assert (kernels.name.split()[0], waits.name[:14]) == ("kernels", "launch bubbles")
    assert "the device waited for the next launch inside a step<br>3" in waits.hovertext[0]


def test_loading_is_one_bar_of_milliseconds_of_the_parts_that_are_known(steps: Any) -> None:
    assert loading_bar(loading_of(steps, RunConfig())).data == ()
    steps |= {"read_s": np.full(200, 0.002), "decode_s": np.full(200, 0.006)}
    figure = valid(loading_bar(loading_of(steps, RunConfig())))
    assert [(t.name, t.x[0], t.marker.color) for t in figure.data] == [
        ("reading 25%", pytest.approx(2), LOADING_COLOURS["read"]),
        ("decoding 75%", pytest.approx(6), LOADING_COLOURS["decode"]),
    ]
    assert figure.data[0].hovertext[0] == "reading<br>2.00 ms a batch (2 to 2 ms), 25%"
    assert figure.layout.xaxis.title.text == "mean time to load one of 198 batches (ms)"


def test_strips_of_long_runs_cost_as_much_as_those_of_short_ones(steps: Any) -> None:
    strip = activity.whole_run(steps)
    figure = valid(activity_strips(["<b>", "other"], [strip, strip]))
    computes, waits, other = figure.data
    assert [trace.name for trace in figure.data] == ["computes", "waits for data", "other"]
    assert len(computes.x) <= 2 * (4 * 160 + 1)
    assert list(figure.layout.yaxis.ticktext) == ["&lt;b&gt;", "other"]
    assert np.nanmax(computes.y) == pytest.approx(1.85), "the second run's strip ends there"
    assert area(computes) + area(waits) + area(other) == pytest.approx(
        2 * 0.85 * strip.end_s[-1], rel=1e-3
    )
    nothing = activity.whole_run({k: v[:0] for k, v in steps.items()})
    assert not any(np.size(trace.x) for trace in activity_strips(["device"], [nothing]).data)


def area(trace: Any) -> float:
    """The area of a trace's closed lines."""
    total = 0.0
    ends = np.flatnonzero(np.isnan(trace.x))
    for first, last in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        x = np.asarray(trace.x[first:last], dtype=float)
        y = np.asarray(trace.y[first:last], dtype=float)
        total += abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    return total


def test_a_bar_for_each_in_the_order_of_the_compose() -> None:
    names = ("<lambda>", "a_function_with_a_very_long_name", "a_function_with_a_very_long_name (2)")
    told = {name: {"s_per_sample": (i + 1) * 1e-3, "calls": 5} for i, name in enumerate(names)}
    figure = transform_bars(transform_times({"transforms": told}))
    (bars,) = figure.data
    assert list(bars.x) == pytest.approx([1, 2, 3])
    assert bars.y[0] == "&lt;lambda&gt;", "no markup of somebody else's"
    assert len(set(bars.y)) == 3, "what is cut stays apart"
    assert (list(bars.text), figure.layout.yaxis.autorange) == (["17%", "33%", "50%"], "reversed")
    assert max(map(len, figure.layout.yaxis.ticktext[1:])) == 22


def made(role: str, ms: float, spread: float = 0.01) -> Anchor:
    s = ms / 1e3
    return Anchor(role, s, s * (1 - spread), s * (1 + spread), 2, 120)


FOUR = [made("A", 4), made("B", 4.01), made("C", 10), made("D", 16)]


def test_each_bar_stands_on_the_one_before_also_where_anchors_are_missing() -> None:
    bar, words = waterfall(headroom(FOUR), 10).data
    assert list(bar.x) == [
        "data free (A)",
        "transfer",
        "preparation",
        "storage",
        "the job, cold (D)",
    ]
    assert list(bar.base) == pytest.approx([0, 40, 40.1, 100, 0])
    assert list(bar.y) == pytest.approx([40, 0.1, 59.9, 60, 160])
    assert bar.base[3] + bar.y[3] == pytest.approx(bar.y[4])
    assert (bar.error_y.array[0], bar.error_y.arrayminus[4]) == (
        pytest.approx(0.4),
        pytest.approx(1.6),
    )
    ends = [40.4, words.y[1], words.y[2], words.y[3], 161.6]
    assert all(words.y >= np.array(ends)), "above the error bars"
    assert "250 samples/s" in bar.hovertext[0]
    assert "60.0 ms a step" in bar.hovertext[3]
    assert [colour == NEUTRAL for colour in bar.marker.color] == [False, True, False, False, False]
    assert "not distinguishable" in words.text[1]
    assert "simulated" in waterfall(headroom(FOUR, simulated=True), 10).layout.yaxis.title.text
    lost = Anchor("B", math.nan, math.nan, math.nan, 0, 0)
    bar, _ = waterfall(headroom([FOUR[0], lost, FOUR[2]]), 10).data
    assert list(bar.x) == ["data free (A)", "transfer and preparation", "the job (C)"]
    assert not waterfall(headroom([]), 10).data
    begun, _ = waterfall(headroom(FOUR[:2]), 10).data
    assert begun.x[-1] == "data in host memory (B)"
    alone, _ = waterfall(headroom([FOUR[0]]), 10).data
    assert list(alone.x) == ["data free (A)"]


def lengths(figure: go.Figure, lane: str, of: str = "x") -> dict[str, float]:
    """The length of each span of a lane, or its beginning."""
    return {bar.name: bar[of][list(bar.y).index(lane)] for bar in figure.data if lane in bar.y}


@pytest.fixture
def fetched() -> dict[str, np.ndarray]:
    """A worker makes each batch in 40 ms, 20 ms of them decoding; the loop waits 30 ms, the last 5 for hand-over."""
    known = {"decode_s": 0.02, "hand_over_s": 0.005, "host_s": 0.01}
    trace: dict[str, np.ndarray] = made_steps([0.03] * 5, 0.04, h2d=0.01, **known)
    return trace | {
        "made_end_s": trace["t_start_s"] + 0.025,
        "made_start_s": trace["t_start_s"] - 0.015,
    }


def test_the_chain_adds_up_and_begins_where_the_loop_asks(fetched: Any) -> None:
    figure = batch_chain(one_step(fetched, 2), timeline(fetched, [], 2, 3))
    made = lengths(figure, "loader")
    assert made == pytest.approx({"decoding": 20, "Python between the stages": 20, "hand-over": 5})
    assert lengths(figure, "loop")["data wait"] == pytest.approx(30)
    assert lengths(figure, "copy") == pytest.approx({"H2D": 10})
    assert lengths(figure, "device")["compute"] == pytest.approx(40)
    assert not lengths(figure, "bubbles")
    begins = lengths(figure, "loader", "base")
    assert (begins["decoding"], begins["hand-over"]) == (pytest.approx(-15), pytest.approx(25))
    assert lengths(figure, "loop", "base")["data wait"] == pytest.approx(0)


def test_stages_are_in_proportion_and_bubbles_beneath_their_compute(fetched: Any) -> None:
    fetched["launch_idle_s"][2] = 0.03
    figure = batch_chain(one_step(fetched, 2), timeline(fetched, [], 2, 3))
    assert lengths(figure, "device")["compute"] == pytest.approx(40)
    assert lengths(figure, "bubbles") == pytest.approx({"launch bubbles": 30})
    fetched["decode_s"][:], fetched["read_s"][:] = 0.06, 0.02  # thread-seconds
    figure = batch_chain(one_step(fetched, 2), timeline(fetched, [], 2, 3))
    made = lengths(figure, "loader")
    assert made == pytest.approx({"reading": 10, "decoding": 30, "hand-over": 5})
    hover = next(bar.hovertext[0] for bar in figure.data if bar.name == "decoding")
    assert hover == "decoding 60.0 ms", "the figure is the measured one"


def test_what_cannot_be_seen_is_in_no_legend_and_nothing_known_is_nothing_drawn(
    fetched: Any,
) -> None:
    fetched["hand_over_s"][:] = 1e-6
    figure = batch_chain(one_step(fetched, 2), timeline(fetched, [], 2, 3))
    assert "hand-over" not in lengths(figure, "loader")
    for name in ("made_start_s", "hand_over_s", "compute_start_s"):
        fetched[name][:] = np.nan
    assert not batch_chain(one_step(fetched, 2), timeline(fetched, [], 2, 3)).data
