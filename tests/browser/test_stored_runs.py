"""Pages over stored runs in a real browser. History: find a run, name it, take it along as a file, delete it, bring it
back. Compare: figures over each other, a baseline, a table that sorts by number. Every page, in both themes, for people
who see, point or hear otherwise: axe-core, contrast in charts, headings."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.ui.dashboard import add_run
from tests.ui.tournaments import add_tournament
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore

from .waits import back, expect, expect_query, follow, settle

SPEEDS = {1: 998.0, 2: 12_300.0, 3: 2_050.0}
NAME = "[x](http://evil.org) **b** :smile: someone@evil.org a -- b <i>c</i> seventh"
"""What a run is called."""
HISTORY = "[class*=st-key-history-table]"
FIRST = f"{HISTORY} table td[aria-colindex='4']"
"""The first name listed; from the grid that the canvas has for screen readers."""
HEADER_PX, ROW_PX, BOX_PX, OPEN_PX = 36, 35, 16, 33 + 50 + 32
"""Heights of the table's header and rows, and how far boxes and buttons are from the left: it is drawn on a canvas."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty runs and a tournament, whose runs no list has. Of three the speed is known."""
    home = tmp_path_factory.mktemp("home")
    store = RunStore(f"sqlite:///{home / 'recordings.sqlite'}")
    for number in range(1, 31):
        speed = SPEEDS.get(number, 1000.0)
        known = {"strategy": "per-sample" if number % 2 else "memory", "device": "simulated:5,0"}
        known["name"] = f"number {number}"
        run_id = add_run(store, n=300 if number in SPEEDS else 40, wait_s=5 / speed, **known)
        store.update_run(run_id, spark=[0.1, 0.9, 0.4], t_origin_s=float(run_id))
        if number in SPEEDS:
            ends = {"samples_per_s_low": 0.98 * speed, "samples_per_s_high": 1.02 * speed}
            store.update_run(run_id, summary=RunSummary(n_steps=300, samples_per_s=speed, **ends))
    add_tournament(store, {"per-sample": 0.02, "tensordataset": 0.005, "memory": 0.001})
    store.close()
    return home


def lists_only(page: Any, name: str) -> None:
    expect(page.locator(FIRST)).to_have_text(
        [name]
    )  # once the table is drawn: it is empty for a moment before


def search(page: Any, words: str, found: str) -> None:
    page.locator(".st-key-q input").fill(words)
    page.keyboard.press("Enter")
    page.get_by_text(found, exact=True).wait_for()


def test_two_runs_are_ticked_by_keyboard_compared_and_still_ticked_on_the_way_back(
    dashboard: str, page: Any
) -> None:
    page.goto(f"{dashboard}history")
    canvas = page.locator(f"{HISTORY} canvas").first
    canvas.wait_for()
    settle(page)
    canvas.focus()  # with cells that can be selected this would open the first run
    for n in ("1 run ticked", "2 runs ticked"):
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Shift+Space")
        page.get_by_text(n).wait_for()
        settle(page)
    n_entries = page.evaluate("navigation.entries().length")
    press(page, "compare")
    page.locator(".st-key-compare-answer").wait_for()
    settle(page)
    # Streamlit makes two of a page that is opened with a query
    assert page.evaluate("navigation.entries().length") == n_entries + 1
    page.go_back()
    page.get_by_text("2 runs ticked").wait_for()
    page.wait_for_url(re.compile(r"/history$"))


def tick_first(page: Any) -> None:
    settle(page)  # the table before is there until the page is drawn
    box = page.locator(f"{HISTORY} [data-testid=stDataFrameResizable]").bounding_box()
    page.mouse.click(box["x"] + BOX_PX, box["y"] + HEADER_PX + ROW_PX / 2)
    page.get_by_text("1 run ticked").wait_for()


def press(page: Any, name: str) -> None:
    page.locator(f".st-key-history-{name}").get_by_role(
        "button"
    ).click()  # hidden ones have no role


def show(page: Any, control: str, words: str) -> None:
    choice = page.locator(f".st-key-{control}")
    choice.get_by_role("radio", name=words).or_(
        choice.get_by_role("button", name=words)
    ).first.click()


@pytest.mark.measured
def test_a_link_a_reload_and_the_way_back_show_the_same_list(dashboard: str, page: Any) -> None:
    """First in this file: Streamlit then knows nothing of app.py's navigation, through which the link goes."""
    page.goto(
        f"{dashboard}history?strategies=memory&strategies=per-sample&size=50&sort=nonsense&page=9"
    )
    page.get_by_text("30 runs, and 4 of tournaments").wait_for()
    page.wait_for_function("!/sort|page/.test(location.search)")
    page.locator(".st-key-sort input").click()
    page.get_by_role("option", name="Oldest first").click()
    page.wait_for_url(re.compile(r"sort=Oldest(\+|%20)first"))
    first = page.locator(FIRST).first
    expect(first).to_have_text("number 1")
    page.reload()
    expect(first).to_have_text("number 1")

    page.get_by_role("link", name="Strategies").click()
    page.get_by_test_id("stDataFrame").wait_for()
    page.wait_for_function("!location.search.includes('sort=')")
    back(page)
    expect(first).to_have_text("number 1")
    expect_query(page, "strategies=memory", "size=50")

    page.get_by_role("button", name="Filters").click()
    page.get_by_role("button", name="Clear filters").click()
    page.wait_for_url(lambda url: "strategies" not in url)
    page.locator(".stMarkdownBadge").first.wait_for(
        state="detached"
    )  # drawn anew: a list opened now stays open
    # Streamlit 1.67 keeps the old choice where the popover closes within milliseconds, before the field is empty.
    expect(page.locator(".st-key-strategies")).not_to_contain_text("memory")
    page.keyboard.press("Escape")
    size = page.locator(".st-key-size input")
    size.scroll_into_view_if_needed()  # a list that is open closes where the page scrolls
    size.click()
    page.get_by_role("option", name="25").click()
    page.get_by_text("1 to 25 of 30 runs").wait_for()
    page.wait_for_function("!/strategies|size/.test(location.search)")


PAGES = {
    "": ".st-key-run-button button:visible",
    "?run=1": "[role=tab]",
    "compare?runs=1,2": ".st-key-compare-shares .main-svg",
    "compare?runs=1,2&show=Data%20waits": ".st-key-compare-waits .main-svg",
    "compare?runs=1,2&show=For%20a%20talk": ".vitprof-picture img[src^='data:']",
    "history": f"{HISTORY} canvas",
    "tournament?tournament=1": "[data-testid=stDataFrame] canvas",
    "strategies?strategy-workers=true": ".vitprof-diagram",
    "selftest": ".st-key-selftest-button button:visible",
}
"""Address -> what is there once it is drawn."""
KNOWN = {
    (
        "scrollable-region-focusable",
        "<pre",
    ): "st.code of a fixed height; browsers let the keys reach what scrolls"
}
"""Rule and how the element begins -> why it stays: what Streamlit draws so and leaves no way to change."""
AXE = """([where, options]) => axe.run(where || document, {resultTypes: ['violations'], preload: false, ...options})
    .then(found => found.violations)"""
MAIN = "[data-testid=stMain]"
"""What is around it is the same on every page, and looked at once."""
OF_A_THEME = {"runOnly": ["color-contrast"]}
"""The rule whose answer depends on the theme; the others are asked once."""
IN_THEME = """dark => (parseInt(getComputedStyle(document.querySelector('.stApp')).backgroundColor.slice(4)) < 128)
    === dark"""


def wrong_in_sight(page: Any, where: str, options: dict[str, Any]) -> Iterator[str]:
    """What axe-core and our own look at charts and headings find in what is drawn now."""
    for rule in page.evaluate(AXE, [where, options]):
        for node in rule["nodes"]:
            target = " ".join(map(str, node["target"]))
            if (rule["id"], node["html"].partition(" ")[0]) not in KNOWN:
                yield f"{rule['id']}: {target} {node['html'][:120]} {node['any'][0]['message'] if node['any'] else ''}"
    yield from page.evaluate((Path(__file__).parent / "accessibility.js").read_text())


@pytest.mark.measured
def test_nothing_keeps_people_from_a_page_in_either_theme(dashboard: str, page: Any) -> None:
    pytest.importorskip("axe_playwright_python")
    wrong, themes = [], [True, False]
    page.goto(dashboard)
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    for address, drawn in PAGES.items():
        follow(page, f"/{address}")
        page.locator(drawn).first.wait_for()
        settle(page)
        for tab in page.locator("[role=tab]:visible").all() or [None]:
            if (
                tab is not None
            ):  # its content comes when it is opened, so both themes are looked at then
                tab.click()
            themes.reverse()  # begins with the one that is on
            for dark in themes:
                page.emulate_media(
                    color_scheme="dark" if dark else "light", reduced_motion="reduce"
                )
                page.wait_for_function(IN_THEME, arg=dark)
                settle(page)
                found = wrong_in_sight(page, MAIN if address else "", OF_A_THEME if dark else {})
                wrong += [f"/{address}, {'dark' if dark else 'light'}: {what}" for what in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.measured
def test_sorting_overlay_baseline_and_a_reload(dashboard: str, page: Any) -> None:
    page.goto(f"{dashboard}compare?runs=2,3")
    page.locator(".st-key-compare-shares .js-plotly-plot").wait_for()
    page.locator(".st-key-compare-runs input").fill("1: ")
    page.get_by_role("option", name=re.compile("^1: ")).click()
    page.keyboard.press("Escape")
    expect_query(page, r"runs=2(,|%2C)3(,|%2C)1")
    speeds = page.locator(
        "[data-testid=stDataFrame] canvas table td[aria-colindex='2']"
    )  # for screen readers
    expect(speeds).to_have_text(["12300", "2050", "998"])
    settle(page)
    box = page.get_by_test_id("stDataFrame").first.bounding_box()
    page.mouse.click(box["x"] + 130 + 40, box["y"] + 18)
    expect(speeds).to_have_text(["998", "2050", "12300"])  # by number
    show(page, "show", "Every step")
    plot = page.locator(".st-key-compare-steps .js-plotly-plot")
    plot.wait_for()
    show(page, "metric", "Step time")
    expect_query(page, r"metric=Step(\+|%20)time")
    page.wait_for_function(
        "document.querySelector('.st-key-compare-steps .js-plotly-plot')?.data?.length === 3"
    )
    page.get_by_role("button", name="Options").click()
    page.locator(".st-key-compare-baseline").get_by_role("combobox").click()
    page.get_by_role("option", name=re.compile("^2: ")).click()
    expect_query(page, "baseline=2")
    page.reload()
    plot.wait_for()
    page.wait_for_function(
        "document.querySelectorAll('.st-key-compare-steps .legendtext').length === 3"
    )
    page.get_by_role("button", name="Options").click()
    expect(page.locator(".st-key-compare-baseline input")).to_have_value(re.compile("^2: "))
    page.keyboard.press("Escape")
    show(page, "show", "Data waits")
    page.locator(".st-key-compare-waits .js-plotly-plot").wait_for()
    expect(page.locator(".st-key-compare-steps")).to_have_count(0)


def test_find_name_export_delete_and_bring_back(dashboard: str, page: Any, tmp_path: Path) -> None:
    page.goto(dashboard)
    page.get_by_role("link", name="History").click()
    page.get_by_text("1 to 25 of 30 runs").wait_for()
    page.get_by_role("button", name="Next page").click()
    page.get_by_text("26 to 30 of 30 runs").wait_for()
    expect_query(page, "page=2")

    search(page, "#7", "1 run")
    lists_only(page, "number 7")
    page.wait_for_url(lambda url: "page=" not in url)
    tick_first(page)
    press(page, "edit")
    page.locator(".st-key-history-name-7 input").fill(NAME)
    page.locator(".st-key-history-note-7 textarea").fill("kept for later")
    press(page, "save")
    page.get_by_text("Run 7 saved").wait_for()
    lists_only(page, NAME)
    page.get_by_text(
        "1 run ticked: 7"
    ).wait_for()  # still: another click on its box would take the tick away

    with page.expect_download() as download:
        press(page, "export")
    assert download.value.suggested_filename == "vitprof-run-7.vitprof"
    file = tmp_path / "sent.vitprof"
    download.value.save_as(file)

    press(page, "delete")
    page.get_by_text("1 run deleted").wait_for()
    page.get_by_text("No run matches the search for").wait_for()
    press(page, "undo")
    lists_only(page, NAME)
    press(page, "delete")
    page.get_by_text("No run matches the search for").wait_for()
    press(page, "clear")
    page.get_by_text("1 to 25 of 29 runs").wait_for()

    page.get_by_role("button", name="Import").click()
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_text(re.compile(r"1 run imported as run \d+")).first.wait_for()
    page.keyboard.press("Escape")
    search(page, "seventh", "1 run")
    lists_only(page, NAME)

    settle(page)
    box = page.locator(f"{HISTORY} [data-testid=stDataFrameResizable]").bounding_box()
    page.mouse.click(box["x"] + OPEN_PX, box["y"] + HEADER_PX + ROW_PX / 2)
    title = page.get_by_role("heading", name="seventh")
    expect(title).to_have_text(NAME)
    expect(title.locator("a, img, strong, em")).to_have_count(0)  # a name is text
    expect_query(page, r"run=\d+")
