"""The History page in a real browser: find a run, name it, take it along as a file, delete it, bring it back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.ui.dashboard import add_run
from vitprof.store import RunStore

from .waits import back, expect, expect_query, settle

HEADER_PX, ROW_PX, BOX_PX = 36, 35, 16
"""Heights of the table's header and rows, and how far its boxes are from the left: it is drawn on a canvas."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    store = RunStore(f"sqlite:///{home / 'recordings.sqlite'}")
    for number in range(30):
        run_id = add_run(store, n=8, name=f"number {number + 1}", strategy="memory" if number % 2 else "per-sample")
        store.update_run(run_id, verdict={"kind": "input-bound"}, spark=[0.1, 0.9, 0.4], t_origin_s=float(run_id))
    store.close()
    return home


def open_history(page: Any, dashboard: str) -> None:
    """By the page's link, as a person would."""
    page.goto(dashboard)
    page.get_by_role("link", name="History").click()
    page.locator("[class*=st-key-history-table] canvas").first.wait_for()


def lists_only(page: Any, name: str) -> None:
    """Wait until the one run listed has this name; from the grid that the canvas has for screen readers."""
    cells = page.locator("[class*=st-key-history-table] table td[aria-colindex='2']")
    expect(cells).to_have_text([name])  # once the table is drawn: it is empty for a moment before


def search(page: Any, words: str, found: str) -> None:
    page.locator(".st-key-q input").fill(words)
    page.keyboard.press("Enter")
    page.get_by_text(found).wait_for()


def tick(page: Any, *rows: int) -> None:
    settle(page)  # the table before is there until the page is drawn
    box = page.locator("[class*=st-key-history-table] [data-testid=stDataFrameResizable]").bounding_box()
    for row in rows:
        page.mouse.click(box["x"] + BOX_PX, box["y"] + HEADER_PX + ROW_PX * row + ROW_PX / 2)
    page.get_by_text(re.compile(rf"^{len(rows)} runs? ticked")).wait_for()


def press(page: Any, name: str) -> None:
    page.locator(f".st-key-history-{name}").get_by_role("button").click()  # hidden ones have no role


def test_a_link_a_reload_the_way_back_and_another_tab_show_the_same_list(dashboard: str, page: Any) -> None:
    """First in this file: Streamlit then knows nothing of app.py's navigation, through which the link goes."""
    page.goto(f"{dashboard}history?strategies=memory&strategies=per-sample&size=50&sort=nonsense&page=9")
    page.get_by_text("1 to 30 of 30 runs").wait_for()
    page.wait_for_function("!/sort|page/.test(location.search)")
    page.locator(".st-key-sort input").click()
    page.get_by_role("option", name="Oldest first").click()
    page.wait_for_url(re.compile(r"sort=Oldest(\+|%20)first"))
    first = page.locator("[class*=st-key-history-table] table td[aria-colindex='2']").first
    page.wait_for_function(
        """() => document.querySelector("[class*=st-key-history-table] table td[aria-colindex='2']")
            ?.textContent === 'number 1'"""
    )
    page.reload()
    first.filter(has_text=re.compile("^number 1$")).wait_for(state="attached")

    other = page.context.new_page()
    page.watch(other)
    other.goto(f"{dashboard}history?q=per-sample")
    other.get_by_text("1 to 15 of 15 runs").wait_for()
    other.close()

    page.get_by_role("link", name="Strategies").click()
    page.get_by_test_id("stDataFrame").wait_for()
    page.wait_for_function("!location.search.includes('sort=')")
    back(page)
    first.filter(has_text=re.compile("^number 1$")).wait_for(state="attached")
    expect_query(page, "strategies=memory", "size=50")
    page.get_by_role("link", name="Profile").click()
    page.locator(".st-key-run-button").wait_for()
    page.get_by_role("link", name="History").click()
    first.filter(has_text=re.compile("^number 1$")).wait_for(state="attached")
    page.wait_for_url(re.compile("strategies=memory"))

    page.get_by_role("button", name="Filters").click()
    page.get_by_role("button", name="Clear filters").click()
    page.wait_for_url(lambda url: "strategies" not in url)
    page.locator(".stMarkdownBadge").first.wait_for(state="detached")  # drawn anew: a list opened now stays open
    # Streamlit 1.67 keeps the old choice where the popover closes within milliseconds, before the field is empty.
    expect(page.locator(".st-key-strategies")).not_to_contain_text("memory")
    page.keyboard.press("Escape")
    size = page.locator(".st-key-size input")
    size.scroll_into_view_if_needed()  # a list that is open closes where the page scrolls
    size.click()
    page.get_by_role("option", name="25").click()
    page.get_by_text("1 to 25 of 30 runs").wait_for()
    page.wait_for_function("!/strategies|size/.test(location.search)")


def test_find_name_export_delete_and_bring_back(dashboard: str, page: Any, tmp_path: Path) -> None:
    open_history(page, dashboard)
    page.get_by_text("1 to 25 of 30 runs").wait_for()
    page.get_by_role("button", name="Next page").click()
    page.get_by_text("26 to 30 of 30 runs").wait_for()
    expect_query(page, "page=2")

    search(page, "#7", "1 to 1 of 1 runs")
    lists_only(page, "number 7")
    page.wait_for_url(lambda url: "page=" not in url)
    tick(page, 0)
    press(page, "edit")
    page.locator(".st-key-history-name-7 input").fill("the seventh")
    page.locator(".st-key-history-note-7 textarea").fill("kept for later")
    press(page, "save")
    page.get_by_text("Run 7 saved").wait_for()
    lists_only(page, "the seventh")
    page.get_by_text("1 run ticked: 7").wait_for()  # still: another click on its box would take the tick away

    with page.expect_download() as download:
        press(page, "export")
    assert download.value.suggested_filename == "vitprof-run-7.vitprof"
    file = tmp_path / "sent.vitprof"
    download.value.save_as(file)

    press(page, "delete")
    page.get_by_text("This cannot be undone").wait_for()
    press(page, "delete-yes")
    page.get_by_text("1 run deleted").wait_for()
    page.get_by_text("No run matches the search for").wait_for()
    press(page, "clear")
    page.get_by_text("1 to 25 of 29 runs").wait_for()

    page.get_by_role("button", name="Import").click()
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_text("1 run imported as run 31").first.wait_for()
    page.keyboard.press("Escape")
    search(page, "seventh", "1 to 1 of 1 runs")
    lists_only(page, "the seventh")

    tick(page, 0)
    press(page, "open")
    page.get_by_role("heading", name="the seventh").wait_for()
    expect_query(page, "run=31")


def test_two_runs_go_to_compare(dashboard: str, page: Any) -> None:
    open_history(page, dashboard)
    search(page, "per-sample", "of 15 runs")
    tick(page, 0, 1)
    press(page, "compare")
    page.get_by_text("Compare runs").wait_for()
    expect_query(page, r"runs=\d+(%2C|,)\d+")
