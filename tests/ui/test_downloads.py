"""The buttons that take runs home: drawn at no cost, each gives its file, and says what opens it."""

import gzip
import json
import zipfile
from io import BytesIO
from unittest.mock import Mock

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import LIMIT_S, add_run, shown
from vitprof.export import trace
from vitprof.store import RunStore
from vitprof.ui import downloads

OPENED_BY = {
    "Trace": "ui.perfetto.dev",
    "Parquet": "read_parquet",
}


def drawn(script: str) -> AppTest:
    begin = "from vitprof.ui import resources, downloads\nstore = resources.store()"
    return shown(AppTest.from_string(f"{begin}\n{script}", default_timeout=LIMIT_S))


def test_buttons_of_a_run_say_what_opens_files_and_make_none(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(store, n=6)
    monkeypatch.setattr(RunStore, "steps", lambda *_, **__: pytest.fail("a button was not clicked"))
    at = drawn("downloads.draw_exports(store.run(1))")
    buttons = {b.proto.label: b.proto.help for b in at.get("download_button")}
    assert list(buttons) == [file.label for file in downloads.OF_ONE]
    assert all(how in buttons[label] for label, how in OPENED_BY.items())
    assert all(buttons.values())
    assert "import torch" in at.code[0].value
    assert not at.error
    add_run(store, n=1)
    at = drawn("downloads.draw_downloads_many([store.run(1)] * 101)")
    assert [b.proto.label for b in at.get("download_button") if b.proto.disabled] == ["Report"]


def test_every_button_gives_its_file(store: RunStore) -> None:
    runs = [store.run(add_run(store, n=30)), store.run(add_run(store, n=0, status="failed"))]
    made = {file.label: file.make(store, runs) for file in (*downloads.OF_MANY, downloads.BUNDLE)}
    assert len(zipfile.ZipFile(BytesIO(made["Bundle"])).namelist()) == 7
    assert made["Report"].startswith(b"<!DOCTYPE html>")
    rows = {name: len(pd.read_csv(BytesIO(made[name]))) for name in made if name.endswith("CSV")}
    rows |= {
        name: len(pd.read_parquet(BytesIO(made[name]))) for name in made if name.endswith("Parquet")
    }
    assert rows == {
        "Summary as CSV": 2,
        "Summary as Parquet": 2,
        "Every step as CSV": 30,
        "Parquet": 30,
    }
    assert len(json.loads(made["JSON"])["runs"]) == 2
    assert json.loads(gzip.decompress(made["Trace"]))["traceEvents"]


def test_the_trace_of_a_long_run_is_cut_unless_ticked(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(store, n=6)
    at = drawn("downloads.draw_exports(store.run(1))")
    assert not at.checkbox
    monkeypatch.setattr(trace, "MOST_STEPS", 5)
    assert json.loads(gzip.decompress(downloads.WHOLE_TRACE.make(store, [store.run(1)])))[
        "traceEvents"
    ]
    button = Mock(wraps=downloads._button)
    monkeypatch.setattr(downloads, "_button", button)
    at = drawn("downloads.draw_exports(store.run(1))")
    (box,) = at.checkbox
    assert "5 of the 6 steps" in box.help
    assert downloads.WHOLE_TRACE not in [call.args[0] for call in button.call_args_list]
    box.check().run()
    assert [call.args[0] for call in button.call_args_list].count(downloads.WHOLE_TRACE) == 1
