"""The buttons that take runs home: drawn at no cost, each gives its file, and says what opens it."""

from __future__ import annotations

import gzip
import json
import zipfile
from io import BytesIO
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import LIMIT_S, add_run
from vitprof.store import RunStore
from vitprof.ui import downloads

OPENED_BY = {"trace": "ui.perfetto.dev", "tensorboard": "tensorboard --logdir", "parquet": "read_parquet"}


def drawn(script: str) -> AppTest:
    at = AppTest.from_string(f"from vitprof.ui import resources, downloads\nstore = resources.store()\n{script}")
    at.run(timeout=LIMIT_S)
    assert not at.exception
    return at


def test_buttons_of_a_run_say_what_opens_files_and_make_none(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_run(store, n=6)
    monkeypatch.setattr(RunStore, "steps", lambda *_, **__: pytest.fail("a button was not clicked"))
    at = drawn("downloads.draw_take_home(store.run(1))")
    buttons = {b.proto.label: b.proto.help for b in at.get("download_button")}
    assert list(buttons) == [file.label for file in downloads.OF_ONE]
    for key, how in OPENED_BY.items():
        assert how in next(file.help for file in downloads.OF_ONE if file.key == key)
    assert all(buttons.values())
    assert "import torch" in at.code[0].value
    assert not at.error
    at = drawn("downloads.draw_exports(store.run(1))")
    assert [b.proto.label for b in at.get("download_button")] == ["Report", "Summary as CSV"]


def test_too_many_runs_for_a_report_say_so_before_the_click(store: RunStore) -> None:
    add_run(store, n=1)
    at = drawn("downloads.draw_downloads_many([store.run(1)] * 101)")
    assert [b.proto.label for b in at.get("download_button") if b.proto.disabled] == ["Report"]


@pytest.mark.slow
def test_every_button_gives_its_file(store: RunStore) -> None:
    runs = [store.run(add_run(store, n=30)), store.run(add_run(store, n=0, status="failed"))]
    made = {file.key: file.make(store, runs) for file in (*downloads.OF_MANY, downloads.BUNDLE)}
    assert len(zipfile.ZipFile(BytesIO(made["bundle"])).namelist()) == 7
    assert made["report"].startswith(b"<!DOCTYPE html>")
    assert len(pd.read_csv(BytesIO(made["summary"]))) == len(pd.read_parquet(BytesIO(made["summary-parquet"]))) == 2
    assert len(pd.read_csv(BytesIO(made["steps"]))) == len(pd.read_parquet(BytesIO(made["parquet"]))) == 30
    assert len(json.loads(made["json"])["runs"]) == 2
    assert json.loads(gzip.decompress(made["trace"]))["traceEvents"]
    assert len(zipfile.ZipFile(BytesIO(made["tensorboard"])).namelist()) == 2


def test_the_trace_of_a_long_run_is_cut_unless_ticked(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_run(store, n=6)
    at = drawn("downloads.draw_take_home(store.run(1))")
    assert not at.checkbox
    monkeypatch.setattr(downloads, "MOST_STEPS", 5)
    asked: list[bool] = []
    assert json.loads(gzip.decompress(downloads.WHOLE_TRACE.make(store, [store.run(1)])))["traceEvents"]
    button = downloads._button

    def drawn_button(file: downloads.File, *args: Any, **options: Any) -> None:
        asked.append(file is downloads.WHOLE_TRACE)
        button(file, *args, **options)

    monkeypatch.setattr(downloads, "_button", drawn_button)
    at = drawn("downloads.draw_take_home(store.run(1))")
    (box,) = at.checkbox
    assert "5 of the 6 steps" in box.help
    assert not any(asked)
    box.check().run(timeout=LIMIT_S)
    assert asked.count(True) == 1
