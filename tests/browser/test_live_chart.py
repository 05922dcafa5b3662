"""The live chart in a real browser: what it draws, what crosses the wire, and that the user's zoom stays."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import live_chart_app as app
from .waits import drag, expect

PLOT = ".st-key-demo .js-plotly-plot"
REFRESH = "document.querySelector('.st-key-refresh button').click()"
PARK_MS = 2_000
"""How long live_chart.js keeps the state of a chart that is gone from the page."""
LONG_MS = 60_000
"""Longer than a busy browser and server need for two reruns."""
PARK_FOR = """({usual, now}) => {
    const original = window.originalSetTimeout ??= window.setTimeout;
    window.setTimeout = (call, ms, ...given) => original(call, ms === usual ? now : ms, ...given);
}"""
# gd: the plot; facts: what the server says; both as JavaScript for wait_for_function.
NAMES = f"""
const gd = document.querySelector('{PLOT}');
const line = document.querySelector('[data-testid="stText"]');
const facts = line && JSON.parse(line.innerText);
"""


@pytest.fixture(scope="module")
def url(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Under a base path, which all that the chart loads must know."""
    script = Path(shutil.copy(app.__file__, tmp_path_factory.mktemp("app") / "app.py"))
    with serve(script, flags=["--server.baseUrlPath", "team/vit"]) as address:
        assert "/team/vit/" in address
        yield address


class Demo:
    """The demo page with its chart drawn."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        page.goto(url)
        self.until("gd?._fullLayout && facts")

    def until(self, condition: str) -> None:
        # While the plot is out of the page (it may be for a moment, see live_chart.js) no condition on it holds.
        self.page.wait_for_function(
            f"() => {{ {NAMES} try {{ return {condition}; }} catch {{ return false; }} }}"
        )

    def read(self, expression: str) -> Any:
        found = self.page.wait_for_function(
            f"() => {{ {NAMES} return gd && facts && {{ value: {expression} }}; }}"
        )
        return found.json_value()["value"]

    def refresh(self, count: int) -> None:
        """Asks for so many refreshes, each once the one before has come.

        Not with the mouse, which may be in the middle of a drag.
        """
        for _ in range(count):
            done = self.page.evaluate(f"() => {{ {NAMES} return facts.refreshes; }}")
            self.page.evaluate(REFRESH)
            self.until(f"facts.refreshes > {done}")

    def tick(self, label: str) -> None:
        self.page.get_by_test_id("stCheckbox").get_by_text(label, exact=True).click()

    def drag(self, start: float, end: float, **options: Any) -> None:
        drag(self.page, self.page.locator(f"{PLOT} .nsewdrag"), start, end, **options)


@pytest.fixture
def demo(page: Any, url: str) -> Demo:
    return Demo(page, url)


def test_draws_and_receives_only_new_points(page: Any, url: str) -> None:
    frames: list[int] = []
    page.on(
        "websocket",
        lambda socket: socket.on("framereceived", lambda frame: frames.append(len(frame))),
    )
    demo = Demo(page, url)
    demo.refresh(6)
    demo.until("gd.data[0].x.length === facts.points")
    points, refreshes, traces = demo.read(
        "[facts.points, facts.refreshes, gd.data.map(({x, y}) => [x, y])]"
    )
    assert points == app.START + refreshes * app.STEP
    assert demo.read("[facts.fulls, facts.asked]") == [1, 0], "whole once"
    sizes = sorted(frames, reverse=True)
    assert sizes[0] > 4_000
    assert sizes[2] < 2_000, "besides, the theme and configuration of a new session are large"
    for held, sent in zip(traces, app.figure(points, None, 1)["data"], strict=True):
        np.testing.assert_allclose(np.array(held[0], float), sent["x"])
        np.testing.assert_allclose(np.array(held[1], float), sent["y"], rtol=2**-12)
    # NaN is a gap
    expect(
        page.locator(f"{PLOT} .scatterlayer .trace").first.locator("path.js-line")
    ).to_have_count(2)
    expect(page.locator(f"{PLOT} .legendtext")).to_have_text(["a <b>& b", "second"])
    demo.until(f"gd.ariaLabel === 'demo of a live chart' && gd.offsetHeight === {app.HEIGHT}")


def test_zoom_survives_refreshes_and_is_reported_once(demo: Demo) -> None:
    demo.drag(0.3, 0.6, on_the_way=lambda: demo.refresh(2))
    demo.until(
        "facts.view && gd.data[0].x.length >= 700"
    )  # the server answered with finer data for the window
    zoomed = demo.read("gd._fullLayout.xaxis.range")
    assert demo.read("facts.view") == pytest.approx(zoomed)
    assert 5 < zoomed[0] < zoomed[1] < 45
    demo.refresh(6)
    assert demo.read("gd._fullLayout.xaxis.range") == zoomed
    demo.until("String(gd._fullLayout.yaxis.range) === '-1.5,1.5'")
    assert demo.read("facts.views") == 1, "no echo"
    assert demo.read("[facts.fulls, facts.asked]") == [1, 0], "all but the first are appended"

    demo.page.locator(f"{PLOT} .nsewdrag").dblclick()
    demo.until("facts.view === null && gd._fullLayout.xaxis.range[1] * 10 >= facts.points - 30")
    demo.until("gd._fullLayout.yaxis.range[1] === 1.5")  # the server's own range is back
    end = demo.read("gd._fullLayout.xaxis.range[1]")
    demo.refresh(1)
    demo.until(f"gd._fullLayout.xaxis.range[1] > {end}")
    assert demo.read("facts.views") == 2

    demo.page.hover(PLOT)
    demo.page.locator(f"{PLOT} [data-title=Pan]").click()

    def nothing_moves_under_the_pointer() -> None:
        demo.until("gd._fullLayout.xaxis.range[0] > 5")
        half_way = demo.read("gd._fullLayout.xaxis.range")
        demo.refresh(2)
        assert demo.read("gd._fullLayout.xaxis.range") == half_way

    demo.drag(0.6, 0.3, on_the_way=nothing_moves_under_the_pointer)
    demo.until(
        "facts.view && facts.view[0] > 10 && facts.view[0] === gd._fullLayout.xaxis.range[0]"
    )
    demo.refresh(3)
    assert demo.read("[gd._fullLayout.dragmode, facts.views]") == ["pan", 3]


@pytest.mark.measured
def test_hidden_trace_stays_hidden_until_another_run(demo: Demo) -> None:
    hidden = "gd._fullData[1].visible === 'legendonly'"
    demo.page.locator(f"{PLOT} .legendtoggle").nth(1).click()
    demo.until(hidden)
    demo.refresh(3)
    assert demo.read(hidden)
    fulls = demo.read("[facts.fulls, gd.mark = 'mine'][0]")
    demo.tick("thick")
    demo.until(f"facts.fulls > {fulls} && gd._fullData[0].line.width === 3")
    demo.refresh(2)
    assert demo.read(f"[{hidden}, gd.mark]") == [True, "mine"]

    demo.drag(0.3, 0.6)
    demo.until("facts.view")
    demo.tick("other run")
    demo.until("facts.view === null && gd._fullData[1].visible === true")
    demo.until("gd._fullLayout.xaxis.range[1] * 10 >= facts.points - 30")


@pytest.mark.measured
def test_leaving_the_page_for_a_moment_and_for_longer_then_another_size_and_theme(
    demo: Demo,
) -> None:
    demo.drag(0.3, 0.6)
    demo.until("facts.view")
    zoomed = demo.read("gd.mark = gd._fullLayout.xaxis.range")
    demo.page.evaluate(PARK_FOR, {"usual": PARK_MS, "now": LONG_MS})
    demo.tick("shown")
    demo.until("!gd")
    demo.tick("shown")
    demo.until("gd?.mark && facts.view")
    demo.refresh(3)
    assert demo.read("gd._fullLayout.xaxis.range") == zoomed
    demo.until(f"JSON.stringify(facts.view) === JSON.stringify({zoomed})")

    gone = demo.page.locator(PLOT).element_handle()
    demo.page.evaluate(PARK_FOR, {"usual": PARK_MS, "now": 0})
    demo.tick("shown")
    demo.until("!gd")
    demo.page.wait_for_function("gd => !gd._fullLayout", arg=gone)  # purged
    demo.tick("shown")
    demo.until("gd?._fullLayout && gd.data[0].x.length === facts.points")
    demo.tick("paused")
    demo.until(
        "facts.points === gd.data[0].x.length && facts.view === null && gd._fullLayout.xaxis.autorange"
    )

    demo.tick("paused")
    expect(demo.page.locator(".js-plotly-plot")).to_have_count(1)
    demo.page.set_viewport_size({"width": 900, "height": 900})
    demo.until("gd._fullLayout.width < 850 && gd._fullLayout.width === gd.clientWidth")

    demo.tick("paused")
    before = demo.read("gd._fullLayout.font.color")
    demo.page.emulate_media(color_scheme="dark")
    demo.until(f"gd._fullLayout.font.color !== '{before}'")
    read = "getComputedStyle(gd).getPropertyValue"
    demo.until(f"{read}('--st-text-color') === gd._fullLayout.font.color")
    demo.until(f"{read}('--st-background-color') === gd._fullLayout.paper_bgcolor")


def test_a_lost_update_is_asked_for(page: Any, url: str) -> None:
    lose, lost = threading.Event(), threading.Event()

    def forward(socket: Any) -> None:
        server = socket.connect_to_server()

        def receive(frame: bytes) -> None:
            if lose.is_set() and not lost.is_set() and b'"base":' in frame:
                lost.set()
            else:
                socket.send(frame)

        server.on_message(receive)

    page.route_web_socket("**/_stcore/stream", forward)
    demo = Demo(page, url)
    demo.refresh(2)
    fulls = demo.read("facts.fulls")
    lose.set()
    demo.refresh(1)
    assert lost.is_set()
    demo.refresh(1)  # the browser can tell by what comes next
    demo.until(f"facts.fulls > {fulls} && facts.points === gd.data[0].x.length")


def test_says_that_it_is_being_drawn_until_it_is(page: Any, url: str) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:  # playwright takes no built-in function
        held.append(route)

    page.route("**/app/static/plotly-cartesian.min.js*", hold)
    page.goto(url)
    note = page.locator(".st-key-demo .vitprof-drawing")
    expect(note).to_have_text("Drawing the chart...")
    assert held
    held[0].continue_()
    page.wait_for_function(f"() => {{ {NAMES} return Boolean(gd?._fullLayout); }}")
    expect(note).to_have_count(0)


@pytest.mark.parametrize("name", ["plotly-cartesian.min.js", "live_chart.js"])
def test_says_what_could_not_be_loaded(page: Any, url: str, name: str) -> None:
    page.route(f"**/app/static/{name}*", lambda route: route.abort())
    page.goto(url)
    page.get_by_text("This chart cannot be drawn").wait_for()
    expect(page.locator(".st-key-demo")).to_contain_text(f"/app/static/{name}?v=")
    page.evaluate(REFRESH)  # the page goes on
    page.wait_for_function(f"() => {{ {NAMES} return facts.refreshes > 1; }}")
    page.problems.clear()
