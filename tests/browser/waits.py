"""Waits of the browser tests that one call of Playwright cannot express."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

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


def settle(page: Any) -> None:
    """Waits until nothing moves: a click on a canvas goes to a place, and a menu that is open closes if its page is
    drawn again.
    """
    page.evaluate(SETTLED)


def follow(page: Any, address: str) -> None:
    """Goes to an address of this server as the browser's Back does: within the session, with what is loaded already.

    It takes a third of the CPU time of `page.goto`.
    """
    page.evaluate(FOLLOW, address)


def back(page: Any) -> None:
    """Goes back to the page before. Streamlit may have added a page and its query to the browser's history as one entry
    or as two: it depends on whether the server sent them together.
    """
    path = urlsplit(page.url).path
    for _ in range(2):
        if urlsplit(page.url).path == path:
            page.go_back()
