"""Pages in a real browser whose runs are short or none: Strategies, a run on Profile by keyboard, by address and over a
reload, the Self-test, the HTML report without a network."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engine_fixtures import wait_until
from tests.ui.dashboard import add_run
from vitprof.export.report import html_report
from vitprof.store import RunStore

from .waits import drag, expect, expect_no_toast, expect_query, open_page, settle

RUN_LIMIT_MS = 120_000
PICTURE = ".vitprof-diagram"
BOXES = f"[...document.querySelectorAll('{PICTURE} > div > div')].map(box => box.getBoundingClientRect())"
WIDE = f"() => {BOXES}.every((box, i, all) => !i || (box.left > all[i - 1].right && box.top === all[0].top))"
TALL = f"""() => {BOXES}.every((box, i, all) => (!i || box.top > all[i - 1].bottom)
    && 0 <= box.left && box.left < box.right && box.right <= innerWidth)"""


def test_strategies(dashboard: str, page: Any, picture: Any) -> None:
    """First in this file: Streamlit then knows nothing of app.py's navigation."""
    page.goto(f"{dashboard}strategies?dataset=photos")
    page.get_by_role("link", name="Compare").wait_for()
    page.get_by_text("strategies can load photos on this machine").wait_for()
    page.wait_for_url(re.compile(r"/strategies(\?|$)"))
    page.wait_for_function(
        "document.querySelector('link[rel*=icon]').href.startsWith('data:image/png;base64,')"
    )
    picture(page, "strategies")

    page.get_by_test_id("stDataFrame").wait_for()
    settle(page)
    page.get_by_role("combobox", name="Strategy").click()
    page.get_by_role("option", name=re.compile("^workers ")).click()
    label = re.compile(re.escape("loader: PyTorch DataLoader (2 worker processes)"))
    expect(page.locator(PICTURE)).to_have_attribute("aria-label", label)
    page.wait_for_function(WIDE)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(TALL)

    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("link", name="Profile").click()
    expect(page.locator(".st-key-run-button button:visible")).to_be_in_viewport(ratio=1)
    expect(page.get_by_test_id("stSidebarNavLink")).to_have_text(
        [re.compile(f"{name}$") for name in ("Profile", "Try fixes", "History")]
    )
    open_page(page, "Machines")
    page.get_by_role("heading", name="Machines").wait_for()


SETTINGS = "strategy=memory&steps=3000&threads=1&evaluate=false&device=simulated:100,0&tab=Timeline"
"""Ten steps a second, for longer than the test. When it ends, the tab with its charts is the open one."""
TABS = 60
"""Presses of the tab key within which everything that is used here must come."""
FOCUSED = "() => document.activeElement?.innerText ?? ''"
MARKED = """() => {
    const style = getComputedStyle(document.activeElement);
    return style.boxShadow !== 'none' || style.outlineStyle !== 'none';
}"""
IN_THE_FORM = "() => document.querySelector('.st-key-set-batch_size input')?.value === '96'"
GAPS = ".st-key-live-gaps .js-plotly-plot"
RANGE = f"document.querySelector('{GAPS}')?._fullLayout?.xaxis.range"


def tab_to(page: Any, words: str) -> None:
    """Press the tab key until the focus, to be seen, is on the button with these words."""
    for _ in range(TABS):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED).strip().endswith(words):
            page.wait_for_function(MARKED)
            return
    pytest.fail(f"{words} is not reached by {TABS} presses of the tab key")


@pytest.mark.measured
def test_a_run_by_keyboard_by_address_and_over_a_reload(dashboard: str, page: Any) -> None:
    page.goto(f"{dashboard}?{SETTINGS}")
    size = page.get_by_role("spinbutton", name="Batch size")
    size.fill("96")
    size.press("Enter")
    expect_query(page, "batch_size=96")
    tab_to(page, "Skip to Run")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.closest('.st-key-run-button') !== null")
    settle(page)  # a page that is drawn again just then loses the press
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("run=1"))
    page.locator(f"{GAPS} .main-svg").first.wait_for(timeout=RUN_LIMIT_MS)

    page.reload()
    page.get_by_text(re.compile(r"^training, .* left$")).wait_for(timeout=RUN_LIMIT_MS)
    page.locator(".st-key-live-cpu .js-plotly-plot .main-svg").first.wait_for()
    page.wait_for_function(IN_THE_FORM)

    plot = page.locator(f"{GAPS} .nsewdrag").first
    plot.wait_for()
    drag(page, plot, 0.2, 0.6)
    page.wait_for_url(re.compile("run=1"))
    page.wait_for_function(
        f"document.querySelector('{GAPS}')?._fullLayout?.xaxis.autorange === false"
    )
    zoomed = page.evaluate(RANGE)

    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    page.get_by_text("Stopped. What was measured until then is kept.").wait_for()
    page.locator(f"{GAPS} .main-svg").first.wait_for()
    expect_no_toast(page)  # it would hide what the page itself says
    page.wait_for_function(f"JSON.stringify({RANGE}) === JSON.stringify({zoomed})")


@pytest.mark.measured
def test_a_selftest_is_started_watched_and_stopped(dashboard: str, page: Any, picture: Any) -> None:
    page.goto(dashboard)
    open_page(page, "Self-test")
    settle(page)  # a button that is drawn again just then loses the click
    page.locator(".st-key-selftest-button button:visible").click()
    page.get_by_role("progressbar").wait_for()
    if not os.environ.get("VITPROF_SCREENSHOTS"):  # README shows the results of all cases
        page.locator(".st-key-selftest-stop button:visible").click()
    page.get_by_text(re.compile(r"^Took .* This report is kept until")).wait_for(timeout=300_000)
    page.get_by_text(re.compile("stopped|cases")).first.wait_for(timeout=RUN_LIMIT_MS)
    expect(page.locator(".st-key-selftest-button button:visible")).to_be_enabled()
    picture(page, "selftest")


LIMIT_BYTES = 5_000_000
HOSTILE = "<script>document.title='run'</script><img src=x onerror=alert(1)>"


def test_the_report_draws_its_charts_without_a_network(
    store: RunStore, tmp_path: Path, page: Any
) -> None:
    ids = [add_run(store, name=HOSTILE, device="simulated:5,0"), add_run(store, wait_s=0.02)]
    report = tmp_path / "report.html"
    report.write_text(html_report(store, [store.run(i) for i in ids]), encoding="utf-8")
    assert report.stat().st_size < LIMIT_BYTES
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.context.set_offline(True)
    page.goto(report.as_uri())
    page.locator(".chart .plot-container").nth(6).wait_for()
    assert asked == [report.as_uri()]
    expect(page.locator("#no-charts")).to_be_hidden()
    expect(page.locator("h2", has_text=HOSTILE)).to_have_count(1)
    expect(page).to_have_title("vitprof: 2 runs")
    drawn = (
        "[...document.querySelectorAll('.chart > div')].map(d => d.data?.length && d.clientHeight)"
    )
    wait_until(lambda: len(sizes := page.evaluate(drawn)) == 7 and all(sizes), "seven charts")
    colour = "getComputedStyle(document.querySelector('.xtick text')).fill"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    # Playwright's own waiting needs eval, which the report's policy forbids.
    wait_until(lambda: page.evaluate(colour) != light, "the dark theme's colours")
    page.set_viewport_size({"width": 390, "height": 800})
    wait_until(
        lambda: page.evaluate("document.documentElement.scrollWidth") <= 390, "narrower charts"
    )
