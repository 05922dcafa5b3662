"""How the dashboard feels in a real browser: by keyboard, by address, over a reload, and how much a refresh sends."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from .waits import expect_no_toast, expect_query

SETTINGS = "strategy=memory&steps=3000&threads=1&evaluate=false&device=simulated:100,0&show=Timeline"
"""Ten steps a second, for longer than the test. When it ends, the tab with its charts is the open one."""
RUN_LIMIT_MS = 120_000
TABS = 60
"""Presses of the tab key within which everything that is used here must come."""
MOST_BYTES = 20_000
FOCUSED = "() => document.activeElement?.innerText ?? ''"
MARKED = """() => {
    const style = getComputedStyle(document.activeElement);
    return style.boxShadow !== 'none' || style.outlineStyle !== 'none';
}"""
IN_THE_FORM = "() => document.querySelector('.st-key-set-batch_size input')?.value === '96'"
GAPS = ".st-key-live-gaps .js-plotly-plot"
RANGE = f"document.querySelector('{GAPS}')?._fullLayout?.xaxis.range"


def tab_to(page: Any, words: str) -> None:
    """Press the tab key until the focus, to be seen, is on the button with these words."""
    for _ in range(TABS):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED).strip().endswith(words):
            page.wait_for_function(MARKED)
            return
    pytest.fail(f"{words} is not reached by {TABS} presses of the tab key")


def refreshes(frames: list[bytes]) -> list[int]:
    """Bytes of each whole run of a script or fragment among what the server sent, in which charts grow.

    A chart that is sent whole (the user has zoomed, or a busy machine has lost an update) is no refresh.
    """
    sizes, grows = [0], [False]
    for frame in frames:
        message = ForwardMsg()
        message.ParseFromString(frame)
        sizes[-1] += len(frame)
        key, _, sent = message.delta.new_element.bidi_component.bytes.partition(b"\n")
        if key.startswith(b"live-"):
            grows[-1] &= "figure" not in json.loads(zlib.decompress(sent) if sent[:1] == b"\x78" else sent)
        if message.WhichOneof("type") == "script_finished":
            sizes.append(0)
            grows.append(True)
    whole = zip(sizes[1:-1], grows[1:-1], strict=True)  # without those that were cut
    return [size for size, grown in whole if grown]


def test_a_run_by_keyboard_by_address_and_over_a_reload(dashboard: str, page: Any) -> None:
    frames: list[bytes] = []

    def keep(frame: bytes) -> None:  # Playwright cannot take a method of a list
        frames.append(frame)

    page.on("websocket", lambda socket: socket.on("framereceived", keep))
    page.goto(f"{dashboard}?{SETTINGS}")
    size = page.get_by_role("spinbutton", name="Batch size")
    size.fill("96")
    size.press("Enter")
    expect_query(page, "batch_size=96")
    tab_to(page, "Skip to Run")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.closest('.st-key-run-button') !== null")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("run=1"))
    page.locator(f"{GAPS} .main-svg").first.wait_for(timeout=RUN_LIMIT_MS)

    page.reload()
    page.get_by_text(re.compile(r"^training, .* left$")).wait_for(timeout=RUN_LIMIT_MS)
    page.locator(".st-key-live-cpu .js-plotly-plot .main-svg").first.wait_for()
    page.wait_for_function(IN_THE_FORM)

    page.get_by_role("link", name="Strategies").click()
    page.get_by_test_id("stDataFrame").wait_for()
    page.get_by_role("link", name="Profile").click()
    expect_query(page, "batch_size=96", "strategy=memory", r"run=1\b")

    page.locator(f"{GAPS} .nsewdrag").first.wait_for()
    box = page.locator(f"{GAPS} .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile("run=1"))
    page.wait_for_function(f"document.querySelector('{GAPS}')?._fullLayout?.xaxis.autorange === false")
    frames.clear()
    page.wait_for_function(f"document.querySelector('{GAPS}').data[0].x.length > 30")
    zoomed = page.evaluate(RANGE)
    while len(refreshes(frames)) < 4:
        page.wait_for_timeout(200)
    sent = refreshes(frames)
    assert max(sent) <= MOST_BYTES
    page.wait_for_function(f"JSON.stringify({RANGE}) === JSON.stringify({zoomed})")

    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    page.get_by_text("Stopped. What was measured until then is kept.").wait_for()
    page.locator(f"{GAPS} .main-svg").first.wait_for()
    expect_no_toast(page)  # it would hide what the page itself says
    page.wait_for_function(f"JSON.stringify({RANGE}) === JSON.stringify({zoomed})")
    page.get_by_role("button", name="Stop").wait_for(state="detached")

    elsewhere = page.context.browser.new_context()  # a link that was sent to someone else
    try:
        other = elsewhere.new_page()
        page.watch(other)
        other.goto(page.url)
        other.get_by_text("Stopped. What was measured until then is kept.").wait_for()
        other.wait_for_function(IN_THE_FORM)
        expect_no_toast(other)  # this session did not watch it
    finally:
        elsewhere.close()
