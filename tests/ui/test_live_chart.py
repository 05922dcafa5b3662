"""What the feed sends: a browser that applies every update holds the figure that the page gave."""

import base64
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ui.dashboard import charts, drawn_by, opened, shown
from vitprof.ui import live_chart
from vitprof.ui.live_chart import ChartFeed, ChartUpdate, described, payload, still


class Browser:
    """live_chart.js in Python, as far as data go."""

    def __init__(self) -> None:
        self.held: tuple[str, int] | None = None
        self.traces: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {}
        self.resync: int | None = None

    def receive(self, update: ChartUpdate) -> int:
        raw = payload(update, key="k", height=100, view=None)
        _, sent = opened(raw)
        if self.held and self.held[1] == sent["revision"]:
            return len(raw)
        if sent.get("figure"):
            self.traces = [
                {k: decode(v) for k, v in trace.items()} for trace in sent["figure"]["data"]
            ]
            self.layout = sent["figure"]["layout"]
        elif self.held == (sent["run"], sent.get("base")):
            for trace, new in zip(self.traces, sent.get("traces", ()), strict=True):
                keep = new.pop("keep")
                for name, values in new.items():
                    trace[name] = trace[name][:keep] + decode(values)
            self.layout = sent.get("layout", self.layout)
        else:
            self.resync = sent["revision"]
            return len(raw)
        self.held = (sent["run"], sent["revision"])
        return len(raw)


def decode(value: Any) -> Any:
    if not isinstance(value, dict) or "bdata" not in value:
        return value
    values = np.frombuffer(base64.b64decode(value["bdata"]), "<" + value["dtype"])
    return values.reshape([int(n) for n in value.get("shape", "-1").split(",")]).tolist()


def line(x: Any, y: Any, **more: Any) -> dict[str, Any]:
    return {
        "data": [
            {
                "type": "scatter",
                "name": "a",
                "x": np.array(x, float),
                "y": np.array(y, float),
                **more,
            }
        ]
    }


ys = st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(np.nan)), max_size=8)
drawings = st.tuples(
    st.lists(ys, min_size=1, max_size=3), st.sampled_from("ab"), st.booleans(), st.integers(0, 1)
)


@given(st.lists(drawings, max_size=12))
def test_the_browser_ends_up_with_the_figure_whatever_gets_lost(steps: list[Any]) -> None:
    feed, browser = ChartFeed(), Browser()
    for traces, run, lost, title in [
        *steps,
        *[(*last[:2], False, last[3]) for last in steps[-1:] * 2],
    ]:
        figure = {
            "data": [{"x": np.arange(len(y)), "y": np.array(y, float)} for y in traces],
            "layout": {"title": {"text": str(title)}},
        }
        update = feed.update(figure, run=run, resync=browser.resync)
        if not lost:
            browser.receive(update)
            browser.receive(update)  # twice is harmless
    if steps:  # whatever got lost, two refreshes later all is there
        assert (browser.layout, len(browser.traces)) == (figure["layout"], len(figure["data"]))
        for held, meant in zip(browser.traces, figure["data"], strict=True):
            np.testing.assert_array_equal(held["x"], meant["x"])
            np.testing.assert_array_equal(np.array(held["y"], float), meant["y"])


def test_sends_only_new_points_and_the_one_that_changed() -> None:
    feed, browser = ChartFeed(), Browser()
    x = np.arange(5000) * 0.01
    y = np.sin(x)
    figure = {"data": [{"x": x[:4000], "y": y[:4000]}]}
    full = browser.receive(feed.update(figure, run="r"))
    y[3999] = 7  # in the caller's buffer, which may be filled on
    update = feed.update({"data": [{"x": x[:4010], "y": y[:4010]}]}, run="r")
    assert (update.figure, update.layout, update.traces[0]["keep"]) == (None, None, 3999)
    appended = browser.receive(update)
    assert 4000 * 2 < full < 4000 * 12, "compressed"
    assert appended < 500
    np.testing.assert_array_equal(browser.traces[0]["x"], x[:4010])
    np.testing.assert_allclose(browser.traces[0]["y"], y[:4010], rtol=2**-12)


def test_another_look_another_run_a_further_trace_and_a_request_are_sent_whole() -> None:
    feed, figure = ChartFeed(), line([1, 2, 3], [1, 2, 3])
    changed: list[tuple[Any, str, int]] = [
        (figure, "r", 0),
        (figure, "s", 0),
        ({"data": figure["data"] * 2}, "s", 0),
    ]
    changes = (
        {"line": {"width": 3}},
        {"name": "b"},
        {"text": ["t"] * 3},
        {"marker": {"color": np.arange(3.0)}},
    )
    changed += [(line([1, 2, 3], [1, 2, 3], **change), "s", 0) for change in changes]
    for drawn, run, resync in [*changed, (figure, "s", 0), (figure, "s", 5)]:
        assert feed.update(drawn, run=run, resync=resync).figure is not None
        assert feed.update(drawn, run=run, resync=resync).figure is None


def test_takes_plotly_figures_and_leaves_the_template_out() -> None:
    feed, browser = ChartFeed(), Browser()
    for n in (3, 5):
        x = np.arange(n)
        trace = go.Scatter(x=x * 0.5, y=x, customdata=np.stack([x, x], axis=1), name="a")
        update = feed.update(
            go.Figure(trace, {"xaxis": {"title": {"text": "s"}}}).to_dict(), run="r"
        )
        browser.receive(update)
    assert (update.figure, browser.layout) == (None, {"xaxis": {"title": {"text": "s"}}})
    assert browser.traces[0]["x"] == [0, 0.5, 1, 1.5, 2]
    assert browser.traces[0]["customdata"] == [[n, n] for n in range(5)]


def test_values_of_every_kind_cross_the_wire_and_a_y_is_right_to_1_in_4000() -> None:
    y = np.random.default_rng(0).lognormal(0, 5, 2000)
    y[:3] = np.nan, np.inf, np.finfo("f4").max
    np.testing.assert_allclose(crossed(y, name="y"), y, rtol=2**-12)
    dates = np.array(["2024-01-02"], "datetime64[D]")
    for values in (
        np.array([1, 2**40]),
        np.array([1, 2], np.uint8),
        np.array([True, False]),
        np.array([]),
    ):
        assert crossed(values) == values.tolist()
    assert (crossed(["a", None, float("nan")]), crossed(dates)) == (
        ["a", None, None],
        ["2024-01-02"],
    )
    odd = {"range": [np.float64("nan"), np.int64(3), float("inf")], "z": np.array([[1.0, np.nan]])}
    _, sent = opened(
        payload(
            ChartFeed().update({"data": [], "layout": odd}, run="r"), key="k", height=1, view=None
        )
    )
    assert sent["figure"]["layout"]["range"] == [None, 3, None]
    assert sent["figure"]["layout"]["z"]["shape"] == "1, 2"


def crossed(values: Any, name: str = "x") -> Any:
    browser = Browser()
    browser.receive(
        ChartFeed().update({"data": [{"y": [1.5] * len(values), name: values}]}, run="r")
    )
    return browser.traces[0][name]


def page() -> None:
    from vitprof.ui.live_chart import draw_growing

    draw_growing(
        {"data": [{"x": [1, 2], "y": [3, 4]}]}, key="one", run="r", alt="an <alt>", height=123
    )


def test_mounts() -> None:
    for _ in range(2):  # AppTest makes a runtime for each
        app = drawn_by(page)
        sent = charts(app)["one"]
        assert (sent["height"], sent["alt"], "figure" in sent) == (123, "an <alt>", True)
        assert "figure" not in charts(shown(app))["one"]


def test_what_the_browser_reports_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    session: dict[str, object] = {
        "k": {"view": [1, 2.5], "picked": {"trace": 1, "x": 2.5, "data": 7}}
    }
    monkeypatch.setattr(live_chart.st, "session_state", session)
    assert (live_chart.view_of("k"), live_chart._pick("k")) == (
        (1.0, 2.5),
        live_chart.Pick(1, 2.5, 7.0),
    )
    assert live_chart.view_of("other") is None
    for view in (None, [2, 1], [1], ["1", "2"], [float("nan"), 1], "ab"):
        session["k"] = {"view": view}
        assert live_chart.view_of("k") is None
    session["k"] = {"picked": {"trace": 0, "x": "loop", "data": None}}
    pick = live_chart._pick("k")
    assert (pick.trace, math.isnan(pick.x), math.isnan(pick.data)) == (0, True, True)
    for clicked in ({"trace": "0", "x": 1}, {"trace": True}, [1], None):
        session["k"] = {"picked": clicked}
        assert live_chart._pick("k") is None


def test_a_still_chart_has_words_and_a_revision_of_its_own() -> None:
    figure = go.Figure([go.Bar(name="compute"), go.Bar(name="data wait"), go.Bar(name="compute")])
    assert described(figure) == "Chart: compute, data wait"
    figure.update_layout(xaxis={"title": {"text": "step"}}, yaxis={"title": {"text": "time (ms)"}})
    assert described(figure) == "Chart of time (ms) against step: compute, data wait"
    assert described(go.Figure()) == "Chart"
    # by that the browser tells whether there is something to draw
    bars, others = (go.Figure([go.Bar(x=["a"], y=[y])]).to_dict() for y in (1, 2))
    update = still(bars, alt="bars")
    assert update == still(bars, alt="bars")
    assert update.revision != still(others).revision
    assert (update.base, update.silent, set(update.figure or ())) == (
        None,
        True,
        {"data", "layout"},
    )
