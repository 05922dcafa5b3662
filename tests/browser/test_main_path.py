"""The product's main path in a real browser: run per-sample, run memory, watch, compare, take the CSV home; and what a
finished run says about itself: the verdict first, advice, headroom."""

import csv
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.ui.dashboard import add_run
from vitprof.jobs.finalise import settle as settle_run
from vitprof.store import RunStore

from .waits import drag, expect, open_page, settle

WARM = True
STEPS, BATCH_SIZE = (160, 256) if "VITPROF_SCREENSHOTS" in os.environ else (80, 32)
"""The pictures in README show a device that is faster than loading sample by sample."""
SETTINGS = f"steps={STEPS}&batch_size={BATCH_SIZE}&threads=1&evaluate=false&device=simulated:8,0"
RUN_LIMIT_MS = 120_000
STEP = "[class*=st-key-step-] input"
RANGE = "document.querySelector('.st-key-live-gaps .js-plotly-plot')?._fullLayout?.xaxis.range"

DONE = re.compile(r"^Done in ")

ENDED = """(strategy) => document.querySelector('h1')?.innerText.startsWith(strategy)
    && document.querySelector('.stApp').dataset.testScriptState === 'notRunning'
    && !document.querySelector('[data-stale=true]')
    && [...document.querySelectorAll('p')].some((text) => /^Done in /.test(text.innerText))
    && !document.querySelector('.st-key-live') && document.querySelector('.st-key-run-again button')
    && [...document.querySelectorAll('[data-testid=stMetric]')]
        .filter((tile) => tile.innerText.startsWith('Samples/s')).length === 1"""
"""The page shows a run of this strategy that has ended, and nothing more of a run before or of the live page.

While the page is drawn its title may be the new run's and the rest still of the one before, not yet marked as stale."""


def run_to_end(page: Any, strategy: str) -> None:
    """Runs what is in the sidebar. What is drawn meanwhile is not looked at: the run may be over sooner."""
    page.locator(".st-key-run-button button:visible").click()
    page.wait_for_function(ENDED, arg=strategy, timeout=RUN_LIMIT_MS)


GAPS = "document.querySelector('.st-key-live-gaps .js-plotly-plot')?.data?.find((trace) => trace.name === 'compute')"
SHOWS_SHARE = f"""(share) => {{
    const {{ x, y }} = {GAPS} ?? {{}};
    if (!(x?.length >= 100)) return false;
    let busy = 0;
    for (let i = 10; i + 1 < x.length; i += 2) busy += y[i] * (x[i + 1] - x[i]);
    return Math.abs(1 - busy / (x[x.length - 1] - x[9]) - share) < 0.05;
}}"""
"""The part of the gap chart that is not painted as compute, after the five steps of warm-up, is about the share.
Each step has a gap before it: steps without are painted as one."""


def expect_idle_share(page: Any, share: float) -> None:
    """Waits until the answer card shows this idle share."""
    shown = """(share) => [...document.querySelectorAll('.vitprof-answer b')]
        .filter((cell) => cell.innerText.endsWith(' idle'))
        .some((cell) => Math.abs(parseFloat(cell.innerText) / 100 - share) < 0.006)"""
    page.wait_for_function(shown, arg=share)


def test_run_two_strategies_compare_and_download(
    dashboard: str, page: Any, picture: Any, tmp_path: Path
) -> None:
    page.goto(f"{dashboard}?{SETTINGS}")
    page.get_by_text("Is your GPU starved by data loading?").wait_for()

    run_to_end(page, "per-sample")
    picture(page, "profile", 800)
    page.get_by_role("tab", name="Timeline").click()
    page.wait_for_url(re.compile("tab=Timeline"))
    for key in ("timeline", "step-chain", "live-batches", "live-cpu"):
        page.locator(f".st-key-{key} .js-plotly-plot .main-svg").first.wait_for()
    page.get_by_text("the largest gap after the warm-up").wait_for()
    expect(page.get_by_text("GPU-util and memory")).to_have_count(1)  # the simulated one's

    strategies = page.locator(".st-key-set-strategy").get_by_role("combobox")
    strategies.scroll_into_view_if_needed()
    settle(page)  # a list that is open closes as what is around it scrolls
    strategies.click()
    page.get_by_role("option", name=re.compile("^memory ")).click()
    run_to_end(page, "memory")

    open_page(page, "Compare")
    page.get_by_text("Compare runs").wait_for()
    page.locator(".st-key-compare-shares .js-plotly-plot").wait_for()
    picture(page, "compare", 1100)
    with page.expect_download() as download:
        page.get_by_role("button", name="Summary as CSV").click()
    path = tmp_path / "runs.csv"
    download.value.save_as(path)
    with path.open(newline="", encoding="utf-8") as file:
        rows = {row["strategy"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"per-sample", "memory"}
    assert {row["n_steps"] for row in rows.values()} == {str(STEPS)}

    page.get_by_role("link", name="History").click()
    page.get_by_text("2 runs", exact=True).wait_for()
    page.locator("[class*=st-key-history-table] canvas").first.wait_for()
    picture(page, "history", 620)

    # a page that is drawn anew: while a run ends, its heading may stand over figures of the one before
    for row in rows.values():
        page.goto(f"{dashboard}?run={row['run_id']}&tab=Timeline")
        if row["waits_for"]:  # on a busy machine there may be no verdict, and no share of one
            expect_idle_share(page, float(row["idle_frac"]))
        else:
            page.locator(".st-key-verdict").wait_for()


def test_the_gap_chart_is_painted_as_the_idle_share_says(
    dashboard: str, home: Path, page: Any
) -> None:
    with closing(RunStore(f"sqlite:///{home / 'recordings.sqlite'}")) as store:
        run_id = add_run(store, n=100, wait_s=0.005)
        store.update_run(run_id, **settle_run(store, run_id, 100.0, 101.0))
    page.goto(f"{dashboard}?run={run_id}&tab=Timeline")
    page.get_by_text(DONE).wait_for()
    expect_idle_share(page, 0.5)
    page.wait_for_function(SHOWS_SHARE, arg=0.5)


@pytest.mark.measured
def test_zoom_in_the_gap_chart_goes_down_to_single_steps(
    dashboard: str, home: Path, page: Any
) -> None:
    with closing(RunStore(f"sqlite:///{home / 'recordings.sqlite'}")) as store:
        run_id = add_run(store, n=2500)
    page.goto(f"{dashboard}?run={run_id}&tab=Timeline")
    page.get_by_text(DONE).wait_for()
    text = f"{GAPS}?.text"
    page.wait_for_function(f"/^steps /.test({text}?.[0]) && {text}.length <= 2000")
    plot = page.locator(".st-key-live-gaps .nsewdrag").first
    plot.scroll_into_view_if_needed()
    drag(page, plot, 0.50, 0.53)
    page.wait_for_function(f"/^step [0-9,]+<br>/.test({text}?.[30]) && {text}.length <= 2000")

    zoomed = page.evaluate(RANGE)
    for key, share, height in (
        ("live-gaps", 0.5, 0.2),
        ("timeline", 0.7, 0.8),
        ("live-batches", 0.5, 0.5),
    ):
        settle(page)
        before = page.locator(STEP).input_value()
        click(page, f".st-key-{key}", share, height)
        page.wait_for_function(f"document.querySelector('{STEP}').value !== '{before}'")
    # in the middle of the chart over all steps
    page.wait_for_function(
        f"(at => 1200 < at && at < 1300)(Number(document.querySelector('{STEP}').value))"
    )
    page.get_by_text("The loop itself made this batch in 5.00 ms").wait_for()
    page.wait_for_function(f"JSON.stringify({RANGE}) === JSON.stringify({zoomed})")

    plot.hover()
    width = zoomed[1] - zoomed[0]
    page.keyboard.press("w")
    page.wait_for_function(f"{RANGE}[1] - {RANGE}[0] < {0.67 * width}")
    page.keyboard.press("d")
    page.wait_for_function(f"{RANGE}[1] > {zoomed[1] - 0.1 * width}")
    page.keyboard.down("Control")
    page.mouse.wheel(0, 500)
    page.keyboard.up("Control")
    page.wait_for_function(f"{RANGE}[1] - {RANGE}[0] > {0.7 * width}")
    cursor = page.locator(".st-key-live-gaps .vitprof-cursor")
    expect(cursor).to_be_visible()
    page.mouse.move(0, 0)
    expect(cursor).to_be_hidden()


def click(page: Any, chart: str, share: float, height: float) -> None:
    """At a share of the plot's width and height. Plotly makes its own elements anew when it draws: one look at them."""
    page.locator(chart).first.scroll_into_view_if_needed()
    left, top, width, tall = page.evaluate(
        """(chart) => {
            const box = document.querySelector(`${chart} .nsewdrag`).getBoundingClientRect();
            return [box.x, box.y, box.width, box.height];
        }""",
        chart,
    )
    page.mouse.click(left + share * width, top + height * tall)


IN_SIGHT = """(key) => [...document.querySelectorAll('.st-key-' + key + ' button')].some((button) => {
    const box = button.getBoundingClientRect();
    return box.width > 0 && box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth;
})"""


def test_what_is_in_sight_at_first(dashboard: str, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(dashboard)
    page.wait_for_function(IN_SIGHT, arg="page-run")
    page.wait_for_function(IN_SIGHT, arg="see-starved")

    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto(dashboard)
    page.get_by_text(re.compile(r"^CPU: \d+% of ")).wait_for()
    expect(
        page.locator(".st-key-page-run")
    ).to_be_hidden()  # one Run is enough where the sidebar is open
    page.locator(".st-key-set-strategy").hover()
    page.mouse.wheel(0, 2000)
    page.wait_for_function(
        "document.querySelector('[data-testid=stSidebarContent]').scrollTop > 300"
    )
    page.wait_for_function(IN_SIGHT, arg="run-button")  # while the settings are scrolled


ON_SCREEN = """() => ['verdict', 'tiles', 'device-time']
    .map((key) => document.querySelector('.st-key-' + key)?.getBoundingClientRect())
    .every((box, at) => box?.top >= 0 && (at < 2 ? box.bottom : box.top + 100) <= innerHeight)"""
WIDEST = {
    "Loading": ".st-key-loading-bar .main-svg",
    "Timeline": ".st-key-live-cpu .main-svg",
    "Export": "[data-testid=stCode]",
    "Answer": ".st-key-device-time .main-svg",
}
"""Tab -> what it draws last."""
WITHIN = """() => {
    const main = document.querySelector('[data-testid=stMain]');
    return main.scrollWidth <= main.clientWidth;
}"""
"""Nothing is wider than the screen."""


@pytest.mark.measured
def test_from_the_verdict_to_headroom(dashboard: str, page: Any) -> None:
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto(f"{dashboard}?steps=60&batch_size=128&threads=1&evaluate=false&device=simulated:4,0")
    page.locator(".st-key-run-button button:visible").click()
    page.get_by_text(DONE).wait_for(timeout=RUN_LIMIT_MS)
    page.locator(".st-key-verdict").get_by_text(
        re.compile("bound\\.$|^Inconclusive\\.$")
    ).wait_for()
    page.wait_for_function(ON_SCREEN)  # when what the live page showed above it is gone
    page.locator(".st-key-device-time .js-plotly-plot .main-svg").first.wait_for()

    use = page.get_by_role("button", name="Use these settings")
    settle(page)
    if use.count():  # on a machine that lacks a core the only advice may be to end other programs
        use.first.click()
        page.get_by_text("The settings are in the sidebar.").wait_for()
        expect(page.locator(".st-key-set-strategy input")).not_to_have_value(
            re.compile("per-sample")
        )

    page.get_by_role("button", name="Measure headroom").click()
    working = page.get_by_text(re.compile(r"^anchor [ABC] .* of 6: "))
    working.wait_for()
    page.reload()
    working.wait_for()
    expect(page.get_by_role("button", name="Measure headroom")).to_have_count(
        0
    )  # it cannot be started twice
    page.locator(".st-key-headroom-stop button:visible").click()
    page.get_by_role("button", name="Measure headroom again").wait_for()

    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.locator(".st-key-verdict").get_by_text(
        re.compile("bound\\.$|^Inconclusive\\.$")
    ).wait_for()
    page.get_by_role("button", name="Measure headroom again").wait_for()
    for tab, chart in WIDEST.items():
        page.get_by_role("tab", name=tab).click()
        page.locator(chart).first.wait_for()
        page.wait_for_function(WITHIN)
