"""What leaves vitprof can be read by what people open it with, and does nothing there."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.config import CONFIG_COLUMNS, RunConfig
from vitprof.errors import VitprofError
from vitprof.export import (
    FORMULA_STARTS,
    STEPS_HEADER,
    SUMMARY_HEADER,
    cell_text,
    read_csv_text,
    run_object,
    steps_csv,
    summary_csv,
    write_text,
)
from vitprof.records import RUN_COLUMNS, SCHEMA_VERSION, STEP_COLUMNS, SUMMARY_COLUMNS, RunSummary
from vitprof.store import RunStore, StoredRun

SPECIAL = 'a "run", with\nlines\r\nand 50% Größe 🚀; it\'s'
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", "'=1", "'", "''", "-", '="a,b"\n']
NAMES = ["plain", SPECIAL, "a\rb", "", "  spaces ", "a\n", *FORMULAS]
# NUL: Python 3.10's csv cannot read it
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
EXAMPLE = StoredRun(
    id=7,
    name="example",
    status="done",
    stage="",
    progress=None,
    message="",
    created_utc="2026-01-01T00:00:00Z",
    t_origin_s=100.0,
    training_since_s=101.0,
    config=RunConfig(strategy="workers", workers=2, pin_memory=False, lr=1e-5),
    environment={"device_name": "Zürich 9000", "threads": 2},
    facts={},
    phases=(),
    notices=("no GPU",),
    summary=RunSummary(n_steps=3, samples_per_s=1234.5678901234567, startup_s=-0.25, gpu_mem_peak_bytes=3e9),
    error="",
    owner_host="here",
    owner_pid=1,
    owner_started=1.0,
)


def parse(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def test_the_headers_are_the_tables_of_the_records() -> None:
    last = ("error", "schema_version", "simulated")
    assert (*RUN_COLUMNS, *CONFIG_COLUMNS, "device_name", *SUMMARY_COLUMNS, *last) == SUMMARY_HEADER
    assert ("run_id", "name", *STEP_COLUMNS, "simulated") == STEPS_HEADER
    assert len(set(SUMMARY_HEADER)) == len(SUMMARY_HEADER)
    assert summary_csv([]) == ",".join(SUMMARY_HEADER) + "\r\n"


def test_a_row_of_the_summary_holds_identity_config_figures_and_version() -> None:
    (row,) = parse(summary_csv([EXAMPLE]))
    known = {name: value for name, value in row.items() if value}
    assert known.pop("telemetry_hz") == "5.0"
    assert {name: known[name] for name in ("run_id", "name", "status", "created_utc")} == {
        "run_id": "7",
        "name": "example",
        "status": "done",
        "created_utc": "2026-01-01T00:00:00Z",
    }
    assert (row["strategy"], row["workers"], row["pin_memory"], row["evaluate"]) == ("workers", "2", "false", "true")
    assert (row["device_name"], row["schema_version"]) == ("Zürich 9000", str(SCHEMA_VERSION))
    assert float(row["lr"]) == 1e-5
    assert float(row["samples_per_s"]) == 1234.5678901234567
    assert (row["n_steps"], row["startup_s"]) == ("3", "-0.25")
    for not_available in ("steps", "seconds", "prefetch_factor", "test_accuracy", "gpu_util_pct_mean", "error"):
        assert row[not_available] == ""


def test_a_run_without_a_summary_has_a_row_without_figures() -> None:
    (row,) = parse(summary_csv([dataclasses.replace(EXAMPLE, summary=None, environment={}, status="failed")]))
    assert {row[name] for name in SUMMARY_COLUMNS} == {""}  # nor a count of 0: an interrupted run has steps
    assert (row["status"], row["device_name"]) == ("failed", "")


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_read_back(name: str) -> None:
    runs = [dataclasses.replace(EXAMPLE, id=i, name=name, error=name) for i in (1, 2)]
    text = summary_csv(runs)
    for row in parse(text):
        assert None not in row
        assert (read_csv_text(row["name"]), read_csv_text(row["error"])) == (name, name)
        assert (row["strategy"], row["schema_version"]) == ("workers", str(SCHEMA_VERSION))
    frame = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert [read_csv_text(cell) for cell in frame["name"]] == [name, name]


@given(texts)
def test_any_text_is_harmless_in_a_cell_and_comes_back(text: str) -> None:
    cell = cell_text(text)
    assert not cell.startswith(FORMULA_STARTS)
    assert read_csv_text(cell) == text
    (row,) = parse(summary_csv([dataclasses.replace(EXAMPLE, name=text)]))
    assert row["name"] == cell


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_text_and_text_that_looks_so_already_stays_apart(name: str) -> None:
    assert cell_text(name) == "'" + name
    assert cell_text("x" + name) == "x" + name


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (-0.5, "-0.5"),
        (-3, "-3"),
        (1e-17, "1e-17"),
        (0.1 + 0.2, "0.30000000000000004"),
        (3_000_000_000, "3000000000"),
        (np.float64(-1.5), "-1.5"),
        (math.nan, ""),
        (None, ""),
        (math.inf, "inf"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
    ],
)
def test_numbers_stay_numbers_in_full_precision_and_nothing_stands_for_what_is_not_available(
    value: object, cell: str
) -> None:
    assert cell_text(value) == cell


@pytest.fixture
def stored(store: RunStore) -> list[StoredRun]:
    """Two runs of three steps each, with names that need care and negative figures."""
    for name, origin in ((SPECIAL, 50.0), ("=2", None)):
        run_id = store.create_run(RunConfig(name=name))
        store.update_run(run_id, t_origin_s=origin, status="done")
        known = {"t_start_s": 50.125, "compute_start_s": 50.5, "samples": 8.0, "warmup": 1.0, "gap_s": -1e-7}
        row = {name: known.get(name, 0.0 if name in ("rank", "epoch") else math.nan) for name in STEP_COLUMNS}
        store.append_steps(run_id, [list((row | {"step": float(i), "loss": 0.1 * i}).values()) for i in range(3)])
    return store.runs(oldest_first=True)


def test_the_steps_of_runs_can_be_laid_over_each_other(store: RunStore, stored: list[StoredRun]) -> None:
    text = steps_csv(store, stored)
    rows = parse(text)
    assert [(r["run_id"], read_csv_text(r["name"])) for r in rows] == [("1", SPECIAL)] * 3 + [("2", "=2")] * 3
    assert [r["step"] for r in rows] == ["0", "1", "2"] * 2
    assert [float(r["loss"]) for r in rows] == [0.1 * i for i in range(3)] * 2
    assert {r["gap_s"] for r in rows} == {"-1e-07"}
    assert {(r["samples"], r["warmup"], r["rank"], r["read_s"]) for r in rows} == {("8", "1", "0", "")}
    assert {(r["t_start_s"], r["compute_start_s"]) for r in rows[:3]} == {("0.125", "0.5")}  # since the run began
    assert {r["t_start_s"] for r in rows[3:]} == {"50.125"}
    assert steps_csv(store, []) == ",".join(STEPS_HEADER) + "\r\n"


def test_pandas_reads_figures_as_figures(store: RunStore, stored: list[StoredRun]) -> None:
    steps = pd.read_csv(io.StringIO(steps_csv(store, stored)))
    assert all(pd.api.types.is_numeric_dtype(steps[name]) for name in STEP_COLUMNS)
    assert steps["gap_s"].tolist() == [-1e-7] * 6
    assert steps["read_s"].isna().all()
    frame = pd.read_csv(io.StringIO(summary_csv([EXAMPLE, dataclasses.replace(EXAMPLE, summary=None)])))
    assert all(pd.api.types.is_numeric_dtype(frame[name]) for name in SUMMARY_COLUMNS)
    assert frame["startup_s"][0] == -0.25
    assert frame["pin_memory"].tolist() == [False, False]


def test_every_line_ends_with_crlf_and_only_breaks_inside_quotes_stand_alone() -> None:
    text = summary_csv([dataclasses.replace(EXAMPLE, name="plain")] * 2)
    assert text.count("\r\n") == text.count("\n") == text.count("\r") == 3
    assert '"a ""run"", with\nlines' in summary_csv([dataclasses.replace(EXAMPLE, name=SPECIAL)])  # RFC 4180, 2.6, 2.7


def test_the_json_object_of_a_run_is_valid_json_with_null_for_what_is_not_available() -> None:
    found = json.loads(json.dumps(run_object(EXAMPLE), allow_nan=False))
    assert {"schema_version", "run_id", "name", "status", "config", "environment", "summary"} <= set(found)  # issue 2
    assert (found["schema_version"], found["run_id"], found["status"]) == (SCHEMA_VERSION, 7, "done")
    assert RunConfig.from_dict(found["config"]) == EXAMPLE.config
    assert list(found["summary"]) == list(SUMMARY_COLUMNS)
    assert found["summary"]["test_accuracy"] is None
    assert (found["error"], found["notices"]) == (None, ["no GPU"])
    failed = run_object(dataclasses.replace(EXAMPLE, summary=None, status="failed", error="out of memory"))
    assert (failed["status"], failed["error"]) == ("failed", "out of memory")
    assert failed["summary"] == dict.fromkeys(SUMMARY_COLUMNS)


@contextmanager
def little_room(n_bytes: int) -> Iterator[None]:
    """No file may grow beyond `n_bytes`: the closest to a full disk that needs no disk of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_written_as_it_is_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out ü.csv"
    for text in ("a,ü\r\n" * 3, "b\r\n"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
    assert os.listdir(tmp_path) == [path.name]


def test_what_cannot_be_written_whole_is_not_written_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_text(path, "old")
    with little_room(2**20), pytest.raises(VitprofError, match=r"out\.csv cannot be written: File too large$"):
        write_text(path, "x" * 2**21)
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udcff")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.csv"]


@pytest.mark.parametrize(
    ("path", "why"), [("", "Is a directory"), ("no/out.csv", "No such file"), ("file/out.csv", "Not a directory")]
)
def test_a_place_that_takes_no_file_is_one_line_that_names_it(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(VitprofError, match=why) as caught:
        write_text(tmp_path / path, "x")
    assert str(caught.value).startswith(f"{tmp_path / path} cannot be written: ")
    assert [p.name for p in tmp_path.rglob("*")] == ["file"]
    assert not list(tmp_path.parent.glob("*.tmp"))


def test_a_read_only_directory_is_one_line(read_only_dir: Path) -> None:
    with pytest.raises(VitprofError, match=r"out\.csv cannot be written: Permission denied$"):
        write_text(read_only_dir / "out.csv", "x")


def test_a_pipe_is_written_to_and_a_link_followed_instead_of_being_replaced(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "a\r\n")
        assert os.read(reader, 100) == b"a\r\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
