"""Waits of the browser tests that one call of Playwright cannot express."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

try:
    from playwright.sync_api import expect
except ImportError:  # the fixture `browser` then skips or fails each test
    expect = None
else:
    expect.set_options(timeout=60_000)

DRAWN = """() => document.querySelector('.stApp').dataset.testScriptState === 'notRunning'
    && !document.querySelector('[data-testid=stStatusWidget], [data-testid=stSkeleton], [data-stale=true]')
    && [...document.querySelectorAll('[data-testid=stPlotlyChart]')].every(c => c.querySelector('.main-svg'))"""
"""Nothing is under way, and every chart is drawn."""
SETTLED = f"""async () => {{
    const drawn = {DRAWN};
    for (let times = 0; times < 4; times = drawn() ? times + 1 : 0) await new Promise(go => setTimeout(go, 60));
}}"""
"""Drawn, and still so a moment later: a click on a tab takes a while until Streamlit begins to draw."""
FOLLOW = "url => { history.pushState({}, '', url); dispatchEvent(new PopStateEvent('popstate', {state: {}})); }"


def expect_query(page: Any, *parts: str) -> None:
    """Waits until each of these regular expressions is found in the address's query."""
    page.wait_for_url(lambda url: all(re.search(part, urlsplit(url).query) for part in parts))


def expect_no_toast(page: Any) -> None:
    """Waits for less time than a toast stays, so that one that is there fails the test."""
    expect(page.get_by_test_id("stToast")).to_have_count(0, timeout=1_500)


def settle(page: Any) -> None:
    """Waits until nothing moves: a click on a canvas goes to a place, and a menu that is open closes if its page is
    drawn again."""
    page.evaluate(SETTLED)


def drag(
    page: Any, plot: Any, start: float, end: float, on_the_way: Callable[[], None] = lambda: None
) -> None:
    """From one share of a plot's width to another; `on_the_way` runs while the button is down."""
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    for share, then in (
        (start, page.mouse.down),
        ((start + end) / 2, on_the_way),
        (end, page.mouse.up),
    ):
        page.mouse.move(box["x"] + share * box["width"], middle, steps=4)
        then()


def follow(page: Any, address: str) -> None:
    """Goes to an address of this server as the browser's Back does: within the session, with what is loaded already. It
    takes a third of the CPU time of `page.goto`."""
    page.evaluate(FOLLOW, address)


def open_page(page: Any, name: str) -> None:
    """Opens a page by the navigation. Above the settings the pages of its second group are behind a button."""
    link = page.get_by_role("link", name=name, exact=True)
    more = page.get_by_role("button", name=re.compile(r"^View \d+ more"))
    link.or_(more).first.wait_for()
    if not link.is_visible():
        more.click()
    link.click()


def back(page: Any) -> None:
    """Goes back to the page before. Streamlit may have added a page and its query to the browser's history as one entry
    or as two: it depends on whether the server sent them together. The first is drawn before the second is asked for:
    Streamlit makes one request of two that come at once, with the page of the one and the query of the other."""
    path = urlsplit(page.url).path
    for _ in range(2):
        if urlsplit(page.url).path == path:
            page.locator("[data-test-script-state=notRunning]").first.wait_for()
            page.go_back()
