"""What a finished run says about itself, in a real browser: the verdict first, advice, headroom."""

from __future__ import annotations

import re
from typing import Any

from .waits import expect, settle

WARM = True
SETTINGS = "steps=60&batch_size=128&threads=1&evaluate=false&device=simulated:4,0"
RUN_LIMIT_MS = 120_000
ON_SCREEN = """() => [...document.querySelectorAll('.st-key-verdict, .st-key-tiles, .st-key-answer-head')]
    .map((part) => part.getBoundingClientRect())
    .filter((box) => box.top >= 0 && box.bottom <= innerHeight).length === 3"""
WIDEST = {
    "Loading": ".st-key-typical-chain .main-svg",
    "Timeline": ".st-key-live-cpu .main-svg",
    "Take home": "[data-testid=stCode]",
    "Answer": ".st-key-device-time .main-svg",
}
"""Tab -> what it draws last."""
WITHIN = """() => {
    const main = document.querySelector('[data-testid=stMain]');
    return main.scrollWidth <= main.clientWidth;
}"""
"""Nothing is wider than the screen."""


def test_from_the_verdict_to_headroom(dashboard: str, page: Any) -> None:
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto(f"{dashboard}?{SETTINGS}")
    page.locator(".st-key-run-button button:visible").click()
    page.get_by_text(re.compile(r"^Done in ")).wait_for(timeout=RUN_LIMIT_MS)
    page.locator(".st-key-verdict").get_by_text(re.compile("bound:|Inconclusive:")).wait_for()
    page.wait_for_function(ON_SCREEN)  # when what the live page showed above it is gone
    page.locator(".st-key-device-time .js-plotly-plot .main-svg").first.wait_for()

    use = page.get_by_role("button", name="Use these settings")
    settle(page)
    if use.count():  # on a machine that lacks a core the only advice may be to end other programs
        use.first.click()
        page.get_by_text("The settings are in the sidebar.").wait_for()
        expect(page.locator(".st-key-set-strategy input")).not_to_have_value(re.compile("per-sample"))

    page.get_by_role("tab", name="What if").click()
    page.get_by_role("button", name="Measure headroom").click()
    working = page.get_by_text(re.compile(r"^anchor [ABC] .* of 6: "))
    working.wait_for()
    page.reload()
    working.wait_for()
    expect(page.get_by_role("button", name="Measure headroom")).to_have_count(0)  # it cannot be started twice
    page.locator(".st-key-stop-headroom button:visible").click()
    page.get_by_role("button", name="Measure headroom again").wait_for()

    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.locator(".st-key-verdict").get_by_text(re.compile("bound:|Inconclusive:")).wait_for()
    page.get_by_role("button", name="Measure headroom again").wait_for()  # the tab is kept in the URL
    for tab, chart in WIDEST.items():
        page.get_by_role("tab", name=tab).click()
        page.locator(chart).first.wait_for()
        page.wait_for_function(WITHIN)
