"""The page "Strategies" in a real browser: its table, its pictures wide and narrow, and the way to Profile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .waits import expect, settle

PICTURE = ".st-key-strategy-workers .vitprof-diagram"
BOXES = f"[...document.querySelectorAll('{PICTURE} > div > div')].map(box => box.getBoundingClientRect())"
WIDE = f"() => {BOXES}.every((box, i, all) => !i || (box.left > all[i - 1].right && box.top === all[0].top))"
TALL = f"""() => {BOXES}.every((box, i, all) => (!i || box.top > all[i - 1].bottom)
    && 0 <= box.left && box.left < box.right && box.right <= innerWidth)"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def test_its_own_address_works_on_a_server_that_has_shown_nothing_yet(dashboard: str, page: Any, picture: Any) -> None:
    """First in this file: Streamlit then knows nothing of app.py's navigation."""
    page.goto(f"{dashboard}strategies?dataset=photos")
    page.get_by_role("link", name="Compare").wait_for()
    page.get_by_text("strategies can load photos on this machine").wait_for()
    page.wait_for_url(re.compile(r"/strategies(\?|$)"))
    page.wait_for_function("document.querySelector('link[rel*=icon]').href.startsWith('data:image/png;base64,')")
    picture(page, "strategies")


def test_pictures_fit_wide_and_narrow_pages(dashboard: str, page: Any) -> None:
    page.goto(dashboard)
    page.get_by_role("link", name="Strategies").click()
    page.get_by_test_id("stDataFrame").wait_for()
    settle(page)
    expect(page.locator(PICTURE)).to_have_count(0)  # what is closed is not drawn
    page.locator(".st-key-strategy-workers summary").click()
    label = re.compile(re.escape("loader: PyTorch DataLoader (2 worker processes)"))
    expect(page.locator(PICTURE)).to_have_attribute("aria-label", label)
    page.wait_for_function(WIDE)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(TALL)


def test_run_is_in_sight_and_use_in_profile_sets_the_sidebar(dashboard: str, page: Any) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(dashboard)
    run = page.locator(".st-key-run-button button:visible")
    run.wait_for()
    expect(run).to_be_in_viewport(ratio=1)
    page.get_by_role("link", name="Strategies").click()
    page.locator(".st-key-strategy-slow-drive summary").click()
    page.locator(".st-key-strategy-slow-drive").get_by_role("button", name="Use in Profile").click()
    run.wait_for()
    expect(page.locator(".st-key-set-strategy input")).to_have_value(re.compile("slow-drive"))
    page.locator(".st-key-set-slow_drive").wait_for()
    expect(run).to_be_enabled()
