"""The Compare page in a real browser: a link opens it, figures are laid over each other, a baseline is pinned, the
table sorts by number, and a reload shows the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.ui.dashboard import add_run
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore

from .waits import back, expect, expect_query, settle

TABLE = "[data-testid=stDataFrame] canvas table"
SPEEDS = {1: 998.0, 2: 12_300.0, 3: 2_050.0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    store = RunStore(f"sqlite:///{home / 'recordings.sqlite'}")
    for run_id, strategy in zip(SPEEDS, ("per-sample", "memory", "workers"), strict=True):
        assert add_run(store, n=300, wait_s=5 / SPEEDS[run_id], strategy=strategy) == run_id
        speed = SPEEDS[run_id]
        summary = RunSummary(
            n_steps=300, samples_per_s=speed, samples_per_s_low=0.98 * speed, samples_per_s_high=1.02 * speed
        )
        store.update_run(run_id, summary=summary)
    store.close()
    return home


def open_compare(page: Any, dashboard: str, query: str) -> None:
    page.goto(f"{dashboard}compare?{query}")
    page.get_by_text("Compare runs").wait_for()


def show(page: Any, control: str, words: str) -> None:
    page.locator(f".st-key-{control}").get_by_role("radio", name=words).or_(
        page.locator(f".st-key-{control}").get_by_role("button", name=words)
    ).first.click()


def test_overlay_baseline_and_a_reload(dashboard: str, page: Any) -> None:
    open_compare(page, dashboard, "runs=2,3")
    page.locator(".st-key-compare-shares .js-plotly-plot").wait_for()
    page.locator(".st-key-compare-runs input").fill("1: ")
    page.get_by_role("option", name=re.compile("^1: ")).click()
    page.keyboard.press("Escape")
    expect_query(page, r"runs=2(,|%2C)3(,|%2C)1")
    show(page, "show", "Every step")
    plot = page.locator(".st-key-compare-steps .js-plotly-plot")
    plot.wait_for()
    show(page, "metric", "Step time")
    expect_query(page, r"metric=Step(\+|%20)time")
    page.wait_for_function("document.querySelector('.st-key-compare-steps .js-plotly-plot')?.data?.length === 3")
    page.locator(".st-key-compare-baseline").get_by_role("combobox").click()
    page.get_by_role("option", name=re.compile("^2: ")).click()
    expect_query(page, "baseline=2")
    page.reload()
    plot.wait_for()
    page.wait_for_function("document.querySelectorAll('.st-key-compare-steps .legendtext').length === 3")
    expect(page.locator(".st-key-compare-baseline input")).to_have_value(re.compile("^2: "))
    show(page, "show", "Data waits")
    page.locator(".st-key-compare-waits .js-plotly-plot").wait_for()
    expect(page.locator(".st-key-compare-steps")).to_have_count(0)

    page.get_by_role("link", name="Strategies").click()
    page.locator(".st-key-strategy-workers summary").click()
    expect_query(page, "strategy-workers=true")
    page.locator(".st-key-strategy-workers .vitprof-diagram").wait_for()
    page.get_by_role("link", name="Compare").click()
    page.locator(".st-key-compare-waits .js-plotly-plot").wait_for()
    back(page)
    page.locator(".st-key-strategy-workers .vitprof-diagram").wait_for()
    page.wait_for_url(lambda url: url.endswith("/strategies?strategy-workers=true"))
    page.get_by_role("link", name="Compare").click()
    page.locator(".st-key-compare-waits .js-plotly-plot").wait_for()
    page.get_by_role("link", name="Self-test").click()
    page.locator(".st-key-selftest-button").wait_for()
    back(page)
    page.locator(".st-key-compare-waits .js-plotly-plot").wait_for()
    page.wait_for_url(re.compile(r"compare\?.*runs=2(,|%2C)3(,|%2C)1"))


def test_a_click_on_a_header_sorts_by_number(dashboard: str, page: Any) -> None:
    open_compare(page, dashboard, "runs=1,2,3")
    speeds = page.locator(f"{TABLE} td[aria-colindex='2']")  # the grid that the canvas has for screen readers
    expect(speeds).to_have_text(["998", "12300", "2050"])
    settle(page)
    box = page.get_by_test_id("stDataFrame").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 130 + 40, box["y"] + 18)
    expect(speeds).to_have_text(["998", "2050", "12300"])
