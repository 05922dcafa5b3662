"""The browser's files: copied once, whole, and with one line of text where that cannot be."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from vitprof.charts.style import PLOTLY_JS
from vitprof.errors import VitprofError
from vitprof.ui import assets


def test_copies_both_files_and_names_their_urls(tmp_path: Path) -> None:
    static = tmp_path / "static"
    assets.ensure_assets(static)
    assert sorted(os.listdir(static)) == ["live_chart.js", PLOTLY_JS.name]
    assert b"plotly.js (cartesian" in (static / PLOTLY_JS.name).read_bytes()[:200]
    assert (static / "live_chart.js").stat().st_mode & 0o777 == 0o644
    for source in (PLOTLY_JS, assets.CHART_JS):
        assert assets.url_of(source).startswith(f"app/static/{source.name}?v=")


def test_writes_only_what_differs(tmp_path: Path) -> None:
    assets.ensure_assets(tmp_path)
    target = tmp_path / "live_chart.js"
    before = target.stat()
    assets.ensure_assets(tmp_path)
    assert target.stat().st_ino == before.st_ino
    source = target.read_bytes()
    target.write_bytes(b"#" * len(source))  # same size, another version
    assets.ensure_assets(tmp_path)
    assert target.read_bytes() == source


def test_servers_that_start_together_do_not_disturb_each_other(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def start() -> None:
        barrier.wait()
        try:
            assets.ensure_assets(tmp_path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start, name=f"server-{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(os.listdir(tmp_path)) == ["live_chart.js", PLOTLY_JS.name]


@pytest.mark.parametrize("blocked", ["static", f"static/{PLOTLY_JS.name}"])
def test_says_in_one_line_what_cannot_be_written(tmp_path: Path, blocked: str) -> None:
    static = tmp_path / "static"
    if blocked == "static":
        static.write_text("a file in the way")
    else:
        (tmp_path / blocked).mkdir(parents=True)
    with pytest.raises(VitprofError, match=rf"cannot write .*static/{PLOTLY_JS.name}: ") as caught:
        assets.ensure_assets(static)
    assert "\n" not in str(caught.value)
    if static.is_dir():
        assert os.listdir(static) == [PLOTLY_JS.name], "no temporary file is left"
