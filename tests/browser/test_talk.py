"""The picture for a talk in a real browser: shown at the page's width, saved at its own size without a network."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.ui.dashboard import add_run
from vitprof.charts.talk import NARROW, WIDE
from vitprof.store import RunStore

IMAGE = ".vitprof-picture img[src^='data:image/svg']"
DRAWN = """(width) => {
    const image = document.querySelector(".vitprof-picture img[src^='data:image/svg']");
    return image?.naturalWidth === width && image.getBoundingClientRect().right <= innerWidth;
}"""
TITLE = "The simulated GPU waits for data 50% of the time; with memory 2.0%"
PNG_SIZE = slice(16, 24)
"""Where a PNG file has its width and height, four bytes each."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    store = RunStore(f"sqlite:///{home / 'recordings.sqlite'}")
    add_run(store, n=150, device="simulated:5,0")
    add_run(store, n=150, wait_s=0.0001, strategy="memory", device="simulated:5,0")
    store.close()
    return home


def saved(page: Any, kind: str) -> bytes:
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save the picture as {kind}").click()
    assert download.value.suggested_filename == f"vitprof-run-1-and-2.{kind.lower()}"
    return Path(download.value.path()).read_bytes()


def test_a_picture_is_drawn_to_fit_and_saved_as_a_slide(dashboard: str, page: Any) -> None:
    page.goto(f"{dashboard}compare?runs=1,2&show=For+a+talk")
    page.wait_for_function(DRAWN, arg=WIDE.width)
    assert page.locator(IMAGE).get_attribute("alt").startswith(TITLE)
    page.context.set_offline(True)
    png = saved(page, "PNG")
    size = [int.from_bytes(png[PNG_SIZE][at : at + 4]) for at in (0, 4)]
    assert size == [2 * WIDE.width, 2 * WIDE.height]
    svg = saved(page, "SVG").decode()
    words = re.sub(r"<[^>]+>", " ", svg)
    assert " ".join(TITLE.split()[:6]) in " ".join(words.split())
    assert not re.search(r"(href|src)=\"https?:", svg), "a slide loads nothing"
    page.context.set_offline(False)

    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(DRAWN, arg=NARROW.width)
    light = page.locator(IMAGE).get_attribute("src")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        f'(light) => document.querySelector("{IMAGE}")?.src !== light', arg=light
    )
