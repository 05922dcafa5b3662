"""The Self-test page in a real browser: started, watched, stopped; what was found until then is shown."""

from __future__ import annotations

import os
import re
from typing import Any

from .waits import expect

LIMIT_MS = 120_000
ALL_OF_IT_MS = 300_000


def test_start_watch_and_stop(dashboard: str, page: Any, picture: Any) -> None:
    page.goto(dashboard)
    page.get_by_role("link", name="Self-test").click()
    page.locator(".st-key-selftest-button button:visible").click()
    page.get_by_role("progressbar").wait_for()
    if not os.environ.get("VITPROF_SCREENSHOTS"):  # README shows the results of all cases
        page.locator(".st-key-selftest-stop button:visible").click()
    page.get_by_text(re.compile(r"^Took .* Kept until the dashboard ends")).wait_for(timeout=ALL_OF_IT_MS)
    page.get_by_text(re.compile("stopped|cases")).first.wait_for(timeout=LIMIT_MS)
    expect(page.locator(".st-key-selftest-button button:visible")).to_be_enabled()
    picture(page, "selftest")
