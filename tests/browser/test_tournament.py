"""The Tournament page in a real browser: start, pause, reload in mid-run, resume, read the answer, go on from it."""

import re
from typing import Any

import pytest

from .waits import back, expect, expect_query, open_page, settle

WARM = True
SETTINGS = "device=simulated:5,0&isolation=thread&threads=1&batch_size=256"
"""In threads of the server, which is quicker to start; so without strategies that fork workers."""
RUN_LIMIT_MS = 120_000
TABLE = "[data-testid=stDataFrame] canvas table"


def field(page: Any, name: str) -> Any:
    return page.locator(f".st-key-trial_{name} input").first


@pytest.mark.measured
@pytest.mark.alone  # beside other tests no block is clean, and it is not decided within the limit
def test_start_pause_reload_resume_and_the_answer(dashboard: str, page: Any, picture: Any) -> None:
    page.goto(f"{dashboard}?{SETTINGS}")
    page.locator(".st-key-run-button").wait_for()  # now the settings of the address are read
    open_page(page, "Try fixes")
    page.get_by_text("4 settings x 3 rounds = 12 runs").wait_for()
    field(page, "strategies").click()
    for _ in range(3):  # all but per-sample
        page.keyboard.press("Backspace")
    field(page, "strategies").fill("memory")
    page.get_by_role("option", name="memory", exact=True).click()
    page.keyboard.press("Escape")
    for name, value in {"seconds": "1", "repeats": "2"}.items():
        field(page, name).fill(value)
        field(page, name).press("Enter")
    page.get_by_text("2 settings x 2 rounds = 4 runs").wait_for()

    page.locator(".st-key-tournament-start button").first.click()
    page.wait_for_url(re.compile("tournament=1"))
    page.get_by_text(re.compile("0 of 4 runs done; now per-sample, batch 256, round 1")).wait_for()
    page.locator(".st-key-tournament-pause button").first.click()
    page.get_by_text("Paused: the current run is finished first.").wait_for()
    page.wait_for_load_state("networkidle")  # a reload would abort what is still being loaded
    page.reload()
    page.get_by_text(re.compile("Paused.* 1 of 4 runs are done")).wait_for(timeout=RUN_LIMIT_MS)
    page.get_by_text(re.compile("Too early: only per-sample|per-sample, .* are too few")).wait_for()
    page.locator(".st-key-tournament-resume button").first.click()
    page.get_by_role("heading", name="Recommended", exact=True).wait_for(timeout=RUN_LIMIT_MS)
    page.get_by_text("Tournament 1 is done.").wait_for()
    expect(page.get_by_text(re.compile("^Use memory, batch 256: |^Keep per-sample"))).to_have_count(
        1
    )
    page.locator(".st-key-tournament-bars .js-plotly-plot .main-svg").first.wait_for()
    for setting in ("memory, batch 256", "per-sample, batch 256"):
        expect(page.locator(f"{TABLE} td[aria-colindex='1']", has_text=setting)).to_have_count(1)
    picture(page, "tournament", 1100)

    page.get_by_role("radio", name="Break-even").or_(
        page.get_by_role("button", name="Break-even")
    ).first.click()
    page.wait_for_url(re.compile("section=Break-even"))
    page.locator(".st-key-tournament-break-even .js-plotly-plot .main-svg").first.wait_for()
    # a click on a row, drawn on a canvas, shows that setting, here the one that is no baseline
    relative = page.locator(f"{TABLE} td[aria-colindex='5']")
    expect(relative.filter(has_text="baseline")).to_have_count(1)
    settle(page)
    at = 1 - relative.all_text_contents().index("baseline")
    table = page.locator("[data-testid=stDataFrame]").first
    table.scroll_into_view_if_needed()
    box = table.bounding_box()
    table.hover()  # a canvas takes no click where no pointer has been
    page.mouse.click(box["x"] + 60, box["y"] + 35 * (1.5 + at))
    expect_query(page, "section=One(\\+|%20)setting")
    settle(page)  # a click while the page is drawn again is lost
    page.locator(".st-key-tournament-compare-setting button").first.click()
    page.wait_for_url(re.compile(r"compare\?runs=\d+%2C(\d+)&baseline=\1$"))
    page.get_by_role("heading", name="Compare runs").wait_for()
    back(page)
    page.get_by_text("Every step of it:").wait_for()

    page.locator(".st-key-tournament-use-best button").first.click()
    page.locator(".st-key-run-button").wait_for()
    page.wait_for_function("document.querySelector('.st-key-set-device-ms input')?.value === '5'")
    page.get_by_text(
        "The settings of tournament 1 are in the sidebar. Press Run to start."
    ).wait_for(state="attached")
    back(page)
    page.get_by_text("Every step of it:").wait_for()
    expect_query(page, "tournament=1")
