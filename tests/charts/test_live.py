"""What live charts draw: the right figures, few enough points, and the same points again while a run grows."""

import json
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.utils import PlotlyJSONEncoder

from tests.series import made_steps, made_telemetry
from vitprof.charts import live
from vitprof.charts.live import BATCHES, CPU, GAPS, GPU, LOSSES, LiveChart, Points, live_figure
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS

LIVE = [value for value in vars(live).values() if isinstance(value, LiveChart)]
EVERY = pytest.mark.parametrize("chart", LIVE, ids=lambda c: c.key)
MAX_POINTS = 2000
BY_KIND = [trace["name"] for trace in GAPS.traces]
ORIGIN = 90.0


@pytest.fixture(scope="module")
def sources() -> Any:
    """Steps and telemetry of a long run, by the name that charts use."""
    rng = np.random.default_rng(0)
    n = 100_000
    steps = made_steps(rng.exponential(0.02, n), rng.exponential(0.01, n), h2d=0.001)
    steps["loss"][100:110] = np.nan
    columns = {name: rng.random(n) * 1e9 for name in TELEMETRY_COLUMNS}
    telemetry = made_telemetry(
        **(columns | {"t_s": 100 + 0.2 * np.arange(n), "gpu_mem_job_bytes": np.full(n, np.nan)})
    )
    return {"steps": steps, "telemetry": telemetry}


def drawn(chart: LiveChart, sources: Any, n: int, *, zoomed: bool = False) -> list[Points]:
    """A chart of the first `n` points, as a page draws it."""
    series = {name: values[:n] for name, values in sources[chart.source].items()}
    return chart.build(series, ORIGIN, 0, n, chart.group_size(n, zoomed=zoomed))


@EVERY
def test_a_chart_explains_itself_and_names_its_axes(chart: LiveChart) -> None:
    assert {c.key for c in LIVE} == {"gaps", "batches", "loss", "gpu", "cpu"}
    assert (bool(chart.title), len(chart.help) > 40, len(chart.alt) > 15) == (True, True, True)
    columns = {"steps": STEP_COLUMNS, "telemetry": TELEMETRY_COLUMNS}[chart.source]
    assert chart.x == "index" or chart.x in columns
    used = {"xaxis", *(f"yaxis{trace.get('yaxis', 'y')[1:]}" for trace in chart.traces)}
    assert used == {
        name for name, axis in chart.layout.items() if "axis" in name and axis["title"]["text"]
    }
    assert all(trace["name"] for trace in chart.traces)


@EVERY
@pytest.mark.parametrize("n", [0, 1, 60, 160, 651, 100_000])
def test_a_chart_of_any_length_has_few_points_and_is_valid(
    chart: LiveChart, sources: Any, n: int
) -> None:
    for zoomed in (False, True):
        k = chart.group_size(n, zoomed=zoomed)
        points = drawn(chart, sources, n, zoomed=zoomed)
        for trace in points:
            most = -(-n // k) * (1 if k == 1 and chart is not GAPS else 2)
            assert len(trace.x) == len(trace.y) == most or (chart is GAPS and len(trace.x) < most)
            assert len(trace.x) <= MAX_POINTS
            assert trace.text is None or len(trace.text) == len(trace.x)
            assert (np.diff(trace.x) >= -1e-9).all()  # a line never runs back
        figure = go.Figure(
            live_figure(chart, points)
        )  # raises on anything that Plotly does not know
        assert [len(t.x) for t in figure.data] == [len(p.x) for p in points]
        json.dumps(live_figure(chart, points), cls=PlotlyJSONEncoder)


def painted(points: list[Points]) -> dict[str, Points]:
    return dict(zip(["hidden", "lost", *BY_KIND[2:]], points, strict=True))


@pytest.mark.parametrize("n", [1, 60, 100, 1000, 100_000])
def test_the_gap_chart_shows_exactly_as_much_time_of_each_kind_as_there_was(
    sources: Any, n: int
) -> None:
    steps = sources["steps"]
    shown = painted(drawn(GAPS, sources, n))
    heights = {name: points.y[::2] @ np.diff(points.x)[::2] for name, points in shown.items()}
    busy = heights["compute"]
    waited = heights["data wait"] - (
        busy if GAPS.group_size(n) > 1 else 0
    )  # in a column it stands on what is busy
    assert busy == pytest.approx(steps["compute_s"][:n].sum(), rel=1e-3)
    assert [waited, heights["lost"]] == pytest.approx(
        [steps["exposed_wait_s"][:n].sum()] * 2, rel=1e-3
    )
    assert not len(shown["hidden"].x) + len(shown["launch bubbles"].x), (
        "no wait of these was hidden"
    )


def test_zoomed_in_a_step_is_what_the_device_waited_for_then_its_work() -> None:
    steps = made_steps(
        [0.2, 0.4, 0.1], [0.3, 0.1, 0.4], h2d=0.1, began=ORIGIN, launch_idle_s=[0.0, 0.05, 0.0]
    )
    shown = painted(GAPS.build(steps, ORIGIN, 1, 3, 1))
    for name, x in {
        "data wait": [0.6, 1.0, 1.2, 1.3],
        "H2D": [1.0, 1.1, 1.3, 1.4],
        "compute": [1.1, 1.15, 1.4, 1.8],
        "launch bubbles": [1.15, 1.2],
        "lost": [0.6, 1.0, 1.2, 1.3],
    }.items():
        assert shown[name].x == pytest.approx(x), name
        assert shown[name].y.tolist() == [1, 0] * (len(x) // 2)
    assert (shown["data wait"].text or [""])[-1] == "step 2<br>device idle, data wait 100 ms"
    assert (shown["launch bubbles"].text or [""])[0] == "step 1<br>launch bubbles 50.0 ms"


def test_zoomed_out_a_column_shows_the_shares_of_its_steps() -> None:
    steps = made_steps([0.2, 0.4, 0.1], [0.3, 0.1, 0.4], h2d=0.1, began=ORIGIN)
    points = GAPS.build(steps, ORIGIN, 0, 3, 2)
    shown = painted(points)
    assert shown["compute"].x == pytest.approx([0.0, 1.2, 1.2, 1.8])
    assert shown["compute"].y == pytest.approx([1 / 3, 0, 2 / 3, 0])
    assert shown["data wait"].y == pytest.approx([1 / 3 + 0.5, 0, 2 / 3 + 1 / 6, 0])
    assert shown["H2D"].y == pytest.approx([1, 0, 1, 0])
    assert (shown["H2D"].text or [""])[0] == "steps 0 to 1<br>device idle, H2D 200 ms"
    layout = live_figure(GAPS, points, each=2, notes=[{"text": "of 2"}], mark=0.7)["layout"]
    assert layout["xaxis"]["title"]["text"].endswith("a column is 2 steps")
    assert layout["yaxis"]["ticktext"] == ["0", "50%", "100%"]
    assert not live_figure(GAPS, GAPS.build(steps, ORIGIN, 0, 3, 1))["layout"]["yaxis"]["tickvals"]
    assert (layout["annotations"], layout["shapes"][0]["x0"]) == ([{"text": "of 2"}], 0.7)


@pytest.mark.parametrize(
    ("in_sight", "size"), [(60, 1), (61, 2), (145, 2), (160, 2), (161, 2), (400, 4)]
)
def test_steps_of_which_many_are_in_sight_are_columns_and_no_stripes(
    in_sight: int, size: int
) -> None:
    """On a phone a step of 145 had less than two pixels: one of orange and one of green."""
    assert GAPS.group_size(in_sight) == size
    assert (GAPS.group_size(3 * in_sight, zoomed=True) == 1) is (in_sight <= 100)
    assert BATCHES.group_size(in_sight) == 1, "lines do not mix"


def test_the_longest_gaps_in_sight_have_labels_and_alike_ones_have_none() -> None:
    waits = np.full(100, 0.1)
    waits[[20, 21, 60, 80, 99]] = 1.0, 0.9, 2.0, 1.5, 0.5
    steps = made_steps(waits.tolist(), [0.1] * 100, began=ORIGIN)
    share, *labels = live.gap_notes(steps, ORIGIN, None, 0.374)
    assert share["text"] == "<b>37%</b><br>idle"
    assert [label["text"] for label in labels] == ["2.00 s", "1.50 s", "1.00 s"]
    ends = steps["compute_start_s"] - ORIGIN
    assert labels[0]["x"] == pytest.approx(ends[60] - 1.0)
    near = live.gap_notes(steps, ORIGIN, (ends[85], ends[99]), math.nan)
    assert [label["text"] for label in near] == ["500 ms"]
    assert not live.gap_notes(steps, ORIGIN, (ends[1], ends[9]), math.nan)


def test_the_slowest_batch_and_the_highest_loss_are_always_drawn(sources: Any) -> None:
    steps, n = sources["steps"], 100_000
    wait, h2d, compute = drawn(BATCHES, sources, n)
    slowest = int(steps["step_s"][:n].argmax())
    at = wait.x.tolist().index(slowest)
    total = wait.y[at] + h2d.y[at] + compute.y[at]
    assert total == pytest.approx(1e3 * steps["step_s"][slowest])
    assert (wait.y[at], compute.y[at]) == (
        1e3 * steps["data_wait_s"][slowest],
        1e3 * steps["compute_s"][slowest],
    )
    (loss,) = drawn(LOSSES, sources, n)
    assert LOSSES.traces[0]["connectgaps"]  # not each loss is copied from a GPU
    assert (np.nanmin(loss.y), np.nanmax(loss.y)) == (
        np.nanmin(steps["loss"][:n]),
        np.nanmax(steps["loss"][:n]),
    )


def test_telemetry_is_drawn_in_the_units_of_its_axes_and_what_is_not_available_is_a_hole() -> None:
    known = {
        "gpu_util_pct": [50.0, np.nan],
        "gpu_sm_active_pct": [np.nan, 20.0],
        "gpu_sm_occupancy_pct": [np.nan, 5.0],
    }
    known |= {"job_rss_bytes": [2.0**30, 3 * 2.0**30], "job_cpu_pct": [150, 0]}
    telemetry = made_telemetry(t_s=[90.0, 90.2], **known)
    util, active, occupancy, job, _ = GPU.build(telemetry, ORIGIN, 0, 2, 1)
    assert util.x == pytest.approx([0, 0.2])
    np.testing.assert_array_equal(util.y, [50, np.nan])
    assert (active.y[1], occupancy.y[1]) == (20, 5)
    assert np.isnan(job.y).all()
    cpu, rss = CPU.build(telemetry, ORIGIN, 0, 2, 1)
    assert (cpu.y.tolist(), rss.y.tolist()) == ([150, 0], [1, 3])


@pytest.mark.parametrize("k", [1, 2, 4])
def test_an_evaluation_is_other_work_and_a_wait_may_be_hidden_under_busy_time(k: int) -> None:
    steps = made_steps([0.5] * 4, [0.5] * 4, began=ORIGIN)
    for name in ("t_start_s", "compute_start_s"):
        steps[name][2:] += 10.0
    steps["exposed_wait_s"] = np.full(4, 0.2)
    shown = painted(GAPS.build(steps, ORIGIN, 0, 4, k))
    assert shown["other work"].y.tolist() == [1, 0]
    assert np.diff(shown["other work"].x) == pytest.approx([10.0])
    high, low = (
        float(points.y[::2] @ np.diff(points.x)[::2]) for points in (shown["hidden"], shown["lost"])
    )
    assert (high, low) == (pytest.approx(2.0), pytest.approx(0.8)), (
        "exposed ones are drawn over all"
    )


def test_no_axis_for_memory_that_nobody_knows() -> None:
    """As of a simulated device, and while nothing has come yet."""
    for used, n, visible in ((2.0**30, 3, True), (np.nan, 3, False), (np.nan, 0, False)):
        telemetry = made_telemetry(t_s=[1.0, 2.0, 3.0], gpu_mem_used_bytes=np.full(3, used))
        assert (
            live_figure(GPU, GPU.build(telemetry, 0.0, 0, n, 1))["layout"]["yaxis2"]["visible"]
            is visible
        )
