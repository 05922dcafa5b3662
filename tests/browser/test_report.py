"""The HTML report in a real browser without a network: charts are drawn, nothing is asked for, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_fixtures import wait_until
from tests.ui.dashboard import add_run
from vitprof.export.report import html_report
from vitprof.store import RunStore

from .waits import expect

LIMIT_BYTES = 5_000_000
HOSTILE = "<script>document.title='run'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    store = RunStore(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    try:
        ids = [add_run(store, name=HOSTILE, device="simulated:5,0"), add_run(store, wait_s=0.02)]
        path = tmp_path / "report.html"
        path.write_text(html_report(store, [store.run(i) for i in ids]), encoding="utf-8")
    finally:
        store.close()
    assert path.stat().st_size < LIMIT_BYTES
    return path


def test_the_report_draws_its_charts_without_a_network(report: Path, page: Any) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.context.set_offline(True)
    page.goto(report.as_uri())
    page.locator(".chart .plot-container").nth(7).wait_for()
    assert asked == [report.as_uri()]
    expect(page.locator("#no-charts")).to_be_hidden()
    expect(page.locator("h2", has_text=HOSTILE)).to_have_count(1)
    expect(page).to_have_title("vitprof: 2 runs")
    drawn = "[...document.querySelectorAll('.chart > div')].map(d => d.data?.length && d.clientHeight)"
    wait_until(lambda: len(sizes := page.evaluate(drawn)) == 8 and all(sizes), "eight charts")
    colour = "getComputedStyle(document.querySelector('.xtick text')).fill"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    # Playwright's own waiting needs eval, which the report's policy forbids.
    wait_until(lambda: page.evaluate(colour) != light, "the dark theme's colours")
    page.set_viewport_size({"width": 390, "height": 800})
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= 390, "narrower charts")
