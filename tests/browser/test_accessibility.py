"""Every page, in both themes, for people who see, point or hear otherwise: axe-core, contrast in charts, headings."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.ui.dashboard import add_run
from tests.ui.tournaments import add_tournament
from vitprof.store import RunStore

from .waits import expect, follow, settle

pytest.importorskip("axe_playwright_python")

NAME = "[x](http://evil.org) **b** :smile: someone@evil.org a -- b <i>c</i>"
PAGES = {
    "": ".st-key-run-button button:visible",
    "?run=1": "[role=tab]",
    "compare?runs=1,2": ".st-key-compare-shares .main-svg",
    "compare?runs=1,2&show=Data%20waits": ".st-key-compare-waits .main-svg",
    "history": "[class*=st-key-history-table] canvas",
    "tournament": "h1:has-text('Tournament')",
    "tournament?tournament=1": "[data-testid=stDataFrame] canvas",
    "strategies?strategy-workers=true": ".vitprof-diagram",
    "selftest": ".st-key-selftest-button button:visible",
}
"""Address -> what is there once it is drawn."""
KNOWN = {("scrollable-region-focusable", "pre"): "st.code of a fixed height; browsers let the keys reach what scrolls"}
"""Rule and selector -> why it stays: what Streamlit draws so and leaves no way to change."""
AXE = """options => axe.run(document, {resultTypes: ['violations'], ...options}).then(found => found.violations)"""
OF_A_THEME = {"runOnly": ["color-contrast"]}
"""The rule whose answer depends on the theme; the others are asked once."""
IN_THEME = """dark => (parseInt(getComputedStyle(document.querySelector('.stApp')).backgroundColor.slice(4)) < 128)
    === dark"""
BY_KEYBOARD = 5
"""Presses of the tab key from the top of the page within which Run is reached."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    store = RunStore(f"sqlite:///{home / 'recordings.sqlite'}")
    add_run(store, wait_s=0.004, device="simulated:5,0", name=NAME)
    add_run(store, wait_s=0.001, strategy="memory")
    add_tournament(store, {"per-sample": 0.02, "tensordataset": 0.005, "memory": 0.001})
    store.close()
    return home


def wrong_in_sight(page: Any, options: dict[str, Any]) -> Iterator[str]:
    """What axe-core and our own look at charts and headings find in what is drawn now."""
    for rule in page.evaluate(AXE, options):
        for node in rule["nodes"]:
            target = " ".join(map(str, node["target"]))
            if (rule["id"], target) not in KNOWN:
                yield f"{rule['id']}: {target} {node['html'][:120]} {node['any'][0]['message'] if node['any'] else ''}"
    yield from page.evaluate((Path(__file__).parent / "accessibility.js").read_text())


def test_nothing_keeps_people_from_a_page_in_either_theme(dashboard: str, page: Any) -> None:
    axe = (files("axe_playwright_python") / "axe.min.js").read_text()
    wrong = []
    page.goto(dashboard)
    page.evaluate(axe)
    for address, drawn in PAGES.items():
        follow(page, f"/{address}")
        page.locator(drawn).first.wait_for()
        settle(page)
        for tab in page.locator("[role=tab]:visible").all() or [None]:
            if tab is not None:  # its content comes when it is opened, so both themes are looked at then
                tab.click()
            for dark in (False, True):
                page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
                page.wait_for_function(IN_THEME, arg=dark)
                settle(page)
                wrong += [
                    f"/{address}, {'dark' if dark else 'light'}: {what}"
                    for what in wrong_in_sight(page, OF_A_THEME if dark else {})
                ]
    assert not wrong, "\n".join(wrong)


def test_run_is_near_by_keyboard_and_a_name_is_text(dashboard: str, page: Any) -> None:
    page.goto(f"{dashboard}?run=1")
    title = page.get_by_role("heading", name="someone@evil.org")
    expect(title).to_have_text(NAME)
    expect(title.locator("a, img, strong, em")).to_have_count(0)
    run = page.locator(".st-key-run-button button:visible")
    run.wait_for()
    page.locator(".vitprof-skip").wait_for(state="attached")
    for _ in range(BY_KEYBOARD - 1):
        page.keyboard.press("Tab")
        if page.locator(":focus").inner_text() == "Skip to Run":
            break
    page.keyboard.press("Enter")
    expect(run).to_be_focused()
    expect(run).to_have_css("outline-style", "solid")
