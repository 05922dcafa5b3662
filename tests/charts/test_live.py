"""What live charts draw: the right figures, few enough points, and the same points again while a run grows."""

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.utils import PlotlyJSONEncoder

from tests.series import made_steps, made_telemetry
from vitprof.analysis.timing.timeline import group_size
from vitprof.charts import live
from vitprof.charts.live import BATCHES, CPU, GAPS, GPU, LOSSES, LiveChart, Points, live_figure
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS

LIVE = [value for value in vars(live).values() if isinstance(value, LiveChart)]
EVERY = pytest.mark.parametrize("chart", LIVE, ids=lambda c: c.key)
MAX_POINTS = 2000
PER_GROUP = {"gaps": ((3, 3), (4, 4), (2, 2), (0, 0))}
"""Points of a group with one member, and with more, for each trace; elsewhere one, and the lowest and the highest."""
ORIGIN = 90.0


@pytest.fixture(scope="module")
def sources() -> Any:
    """Steps and telemetry of a long run, by the name that charts use."""
    rng = np.random.default_rng(0)
    n = 100_000
    steps = made_steps(rng.exponential(0.02, n), rng.exponential(0.01, n), h2d=0.001)
    steps["loss"][100:110] = np.nan
    columns = {name: rng.random(n) * 1e9 for name in TELEMETRY_COLUMNS}
    telemetry = made_telemetry(**(columns | {"t_s": 100 + 0.2 * np.arange(n), "gpu_mem_job_bytes": np.full(n, np.nan)}))
    return {"steps": steps, "telemetry": telemetry}


def drawn(chart: LiveChart, sources: Any, n: int, groups: int | None = None) -> list[Points]:
    """A chart of the first `n` points, as a page draws it."""
    series = {name: values[:n] for name, values in sources[chart.source].items()}
    return chart.build(series, ORIGIN, 0, n, group_size(n, groups or chart.overview_groups))


@EVERY
def test_a_chart_explains_itself_and_names_its_axes(chart: LiveChart) -> None:
    assert {c.key for c in LIVE} == {"gaps", "batches", "loss", "gpu", "cpu"}
    assert (bool(chart.title), len(chart.help) > 40, len(chart.alt) > 15) == (True, True, True)
    columns = {"steps": STEP_COLUMNS, "telemetry": TELEMETRY_COLUMNS}[chart.source]
    assert chart.x == "index" or chart.x in columns
    used = {"xaxis", *(f"yaxis{trace.get('yaxis', 'y')[1:]}" for trace in chart.traces)}
    assert used == {name for name, axis in chart.layout.items() if "axis" in name and axis["title"]["text"]}
    assert all(trace["name"] for trace in chart.traces)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("n", [0, 1, 160, 651, 100_000])
def test_a_chart_of_any_length_has_few_points_and_is_valid(chart: LiveChart, sources: Any, n: int) -> None:
    for groups in {chart.overview_groups, chart.max_groups}:
        k = group_size(n, groups)
        points = drawn(chart, sources, n, groups)
        per_group = PER_GROUP.get(chart.key, ((1, 2),) * len(chart.traces))
        for trace, (alone, together) in zip(points, per_group, strict=True):
            assert len(trace.x) == len(trace.y) == -(-n // k) * (alone if k == 1 else together)
            assert len(trace.x) <= MAX_POINTS
            assert trace.text is None or len(trace.text) == len(trace.x)
            assert (np.diff(trace.x) >= -1e-9).all()  # a line never runs back
        figure = go.Figure(live_figure(chart, points))  # raises on anything that Plotly does not know
        assert [len(t.x) for t in figure.data] == [len(p.x) for p in points]
        json.dumps(live_figure(chart, points), cls=PlotlyJSONEncoder)


def area(points: Points) -> float:
    """Under a line of the shape "hv": each value holds until the next point."""
    return float((points.y[:-1] * np.diff(points.x)).sum())


def test_the_gap_chart_shows_exactly_as_much_busy_time_and_waiting_as_there_was(sources: Any) -> None:
    steps = sources["steps"]
    for n in (1, 1000, 100_000):
        busy, wait, *_ = drawn(GAPS, sources, n)
        assert area(busy) == pytest.approx(steps["compute_s"][:n].sum())
        assert area(wait) == pytest.approx(steps["data_wait_s"][:n].sum())
        # since the run began
        assert (busy.x[0], busy.x[-1]) == (pytest.approx(10.0), pytest.approx(10 + steps["step_s"][:n].sum()))


def test_the_gap_chart_zoomed_in_shows_each_step_as_it_was() -> None:
    steps = made_steps([0.2, 0.4, 0.1], [0.3, 0.1, 0.4], h2d=0.1, began=ORIGIN)
    busy, wait, *_ = GAPS.build(steps, ORIGIN, 1, 3, 1)
    assert busy.x == pytest.approx([0.6, 1.1, 1.2, 1.2, 1.4, 1.8])  # idle from, busy from, end
    assert busy.y.tolist() == [0, 1, 0] * 2
    assert wait.x == pytest.approx([0.6, 1.0, 1.0, 1.0, 1.2, 1.3, 1.3, 1.3])
    assert wait.y.tolist() == [1, 0, 1, 0] * 2
    assert list(busy.text or ())[:3] == ["step 1<br>device idle 500 ms, busy 100 ms"] * 3
    assert list(wait.text or ())[4:] == ["step 2<br>data wait 100 ms, of which exposed 100 ms"] * 4
    busy, *_ = GAPS.build(steps, ORIGIN, 0, 3, 2)
    assert list(busy.text or ())[::3] == [
        "steps 0 to 1, drawn as one<br>device idle 800 ms, busy 400 ms",
        "step 2<br>device idle 200 ms, busy 400 ms",
    ]


def test_the_slowest_batch_and_the_highest_loss_are_always_drawn(sources: Any) -> None:
    steps, n = sources["steps"], 100_000
    wait, h2d, compute = drawn(BATCHES, sources, n)
    slowest = int(steps["step_s"][:n].argmax())
    at = wait.x.tolist().index(slowest)
    total = wait.y[at] + h2d.y[at] + compute.y[at]
    assert total == pytest.approx(1e3 * steps["step_s"][slowest])
    assert (wait.y[at], compute.y[at]) == (1e3 * steps["data_wait_s"][slowest], 1e3 * steps["compute_s"][slowest])
    (loss,) = drawn(LOSSES, sources, n)
    assert LOSSES.traces[0]["connectgaps"]  # not each loss is copied from a GPU
    assert (np.nanmin(loss.y), np.nanmax(loss.y)) == (np.nanmin(steps["loss"][:n]), np.nanmax(steps["loss"][:n]))


def test_telemetry_is_drawn_in_the_units_of_its_axes_and_what_is_not_available_is_a_hole() -> None:
    known = {"gpu_util_pct": [50.0, np.nan], "gpu_sm_active_pct": [np.nan, 20.0], "gpu_sm_occupancy_pct": [np.nan, 5.0]}
    known |= {"job_rss_bytes": [2.0**30, 3 * 2.0**30], "job_cpu_pct": [150, 0]}
    telemetry = made_telemetry(t_s=[90.0, 90.2], **known)
    util, active, occupancy, job, _ = GPU.build(telemetry, ORIGIN, 0, 2, 1)
    assert util.x == pytest.approx([0, 0.2])
    np.testing.assert_array_equal(util.y, [50, np.nan])
    assert (active.y[1], occupancy.y[1]) == (20, 5)
    assert np.isnan(job.y).all()
    cpu, rss = CPU.build(telemetry, ORIGIN, 0, 2, 1)
    assert (cpu.y.tolist(), rss.y.tolist()) == ([150, 0], [1, 3])


def test_the_gap_chart_shows_an_evaluation_as_such_and_hidden_waits_under_busy_time() -> None:
    steps = made_steps([0.5] * 4, [0.5] * 4, began=ORIGIN)
    for name in ("t_start_s", "compute_start_s"):
        steps[name][2:] += 10.0
    steps["exposed_wait_s"] = np.full(4, 0.2)
    for k in (1, 2, 4):
        busy, wait, evaluation, _ = GAPS.build(steps, ORIGIN, 0, 4, k)
        assert (area(busy), area(evaluation)) == (pytest.approx(2.0), pytest.approx(10.0))
        assert area(wait) == pytest.approx(2.0)
    busy, wait, evaluation, _ = GAPS.build(steps, ORIGIN, 0, 4, 2)
    assert evaluation.x.tolist() == [0.0, 0.0, 2.0, 12.0]
    assert wait.x[4:] == pytest.approx([12.0, 12.4, 13.0, 13.6])  # exposed in the gap, hidden from where it is busy
    assert busy.x[3:] == pytest.approx([2.0, 13.0, 14.0])


def test_no_axis_for_memory_that_nobody_knows() -> None:
    """As of a simulated device, and while nothing has come yet."""
    for used, n, visible in ((2.0**30, 3, True), (np.nan, 3, False), (np.nan, 0, False)):
        telemetry = made_telemetry(t_s=[1.0, 2.0, 3.0], gpu_mem_used_bytes=np.full(3, used))
        assert live_figure(GPU, GPU.build(telemetry, 0.0, 0, n, 1))["layout"]["yaxis2"]["visible"] is visible


def test_launch_bubbles_have_a_lane_of_their_own_where_there_are_any() -> None:
    steps = made_steps([0.1] * 4, [0.4] * 4, began=ORIGIN)
    *_, bubbles = points = GAPS.build(steps, ORIGIN, 0, 4, 1)
    assert not len(bubbles.x)
    hidden = live_figure(GAPS, points)
    assert hidden["layout"]["yaxis3"]["visible"] is hidden["data"][3]["showlegend"] is False
    steps["launch_idle_s"][1:] = 0.0, 0.3, 0.3
    *_, bubbles = points = GAPS.build(steps, ORIGIN, 0, 4, 1)
    assert bubbles.x == pytest.approx([1.2, 1.5, 1.7, 2.0]), "none of the step where there were none"
    assert bubbles.y.tolist() == [1, 0] * 2
    assert list(bubbles.text or ())[:2] == ["step 2<br>launch bubbles 300 ms of 400 ms busy"] * 2
    drawn = live_figure(GAPS, points)
    assert drawn["layout"]["yaxis3"]["visible"] is True
    assert drawn["data"][3].items() >= {"name": "launch bubbles", "yaxis": "y3"}.items()
    assert "visible" not in GAPS.layout["yaxis3"], "the chart itself stays as it is"
    *_, bubbles = GAPS.build(steps, ORIGIN, 0, 4, 4)
    assert area(bubbles) == pytest.approx(0.6), "of neighbours as much as there was"
