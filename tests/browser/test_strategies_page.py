"""The page "Strategies" in a real browser: its table, its pictures wide and narrow, and the way to Profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests import ROOT

from .waits import expect, settle

PICTURE = ".st-key-strategy-workers .vitprof-diagram svg"

IN_THE_PAGES_COLOUR = """([picture, dark]) => {
    const ink = getComputedStyle(document.querySelector(picture)).fill;
    const words = getComputedStyle(document.querySelector('.st-key-strategy-workers p')).color;
    return ink === words && (parseInt(ink.replace(/\\D+/, '')) > 128) === dark;
}"""

WITHIN = """(picture) => {
    const box = document.querySelector(picture).getBoundingClientRect();
    return 0 <= box.left && box.left < box.right && box.right <= innerWidth;
}"""


@pytest.fixture(scope="module")
def dashboard(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    env = {"VITPROF_HOME": str(tmp_path_factory.mktemp("home"))}
    with serve(ROOT / "app.py", env=env) as url:
        yield url


def test_its_own_address_works_on_a_server_that_has_shown_nothing_yet(dashboard: str, page: Any, picture: Any) -> None:
    """First in this file: Streamlit then knows nothing of app.py's navigation."""
    page.goto(f"{dashboard}strategies?dataset=photos")
    page.get_by_role("link", name="Compare").wait_for()
    page.get_by_text("strategies can load photos on this machine").wait_for()
    page.wait_for_url(re.compile(r"/strategies(\?|$)"))
    page.wait_for_function("document.querySelector('link[rel*=icon]').href.startsWith('data:image/png;base64,')")
    picture(page, "strategies")


def test_pictures_fit_wide_and_narrow_pages_in_the_pages_own_colour(dashboard: str, page: Any) -> None:
    page.goto(dashboard)
    page.get_by_role("link", name="Strategies").click()
    page.get_by_test_id("stDataFrame").wait_for()
    settle(page)
    expect(page.locator(PICTURE)).to_have_count(0)  # what is closed is not drawn
    page.locator(".st-key-strategy-workers summary").click()
    page.locator(f"{PICTURE}.wide").wait_for()
    expect(page.locator(f"{PICTURE}.tall")).to_be_hidden()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(IN_THE_PAGES_COLOUR, arg=[f"{PICTURE}.wide text", scheme == "dark"])
    label = re.compile(re.escape("loader: PyTorch DataLoader (2 worker processes)"))
    expect(page.locator(f"{PICTURE}.wide")).to_have_attribute("aria-label", label)
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(f"{PICTURE}.tall").wait_for()
    expect(page.locator(f"{PICTURE}.wide")).to_be_hidden()
    page.wait_for_function(WITHIN, arg=f"{PICTURE}.tall")


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
