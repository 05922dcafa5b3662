"""CSV, Parquet and JSON of runs say the same, and can be read by what people open them with; docs/formats.md has every
column of every file."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.hooks import columns
from tests import ROOT
from tests.analysis.verdict.test_answer import BLUR, SMALL, STARVED
from tests.csv_cells import read_csv_text
from tests.export.written import written
from tests.stored_series import append_steps
from tests.ui.dashboard import add_run
from vitprof.analysis.verdict.answer import answer_of
from vitprof.config import CONFIG_COLUMNS, RunConfig
from vitprof.export import tables
from vitprof.export.tournament import TOURNAMENT_HEADER
from vitprof.export.trace import COUNTERS
from vitprof.recording import columns as recorded
from vitprof.recording.verdict import Verdict
from vitprof.store import RunStore, StoredRun

SPECIAL = 'a "run", with\nlines\r\nand 50% Größe 🚀; it\'s'
FORMULAS = ["=1+1", "+1", "-1", "-", "@SUM(A1)", "\t=1", "\r=1", *"\uff1d\uff0b\uff0d\uff20"]
FORMULAS += ["=cmd|' /C calc'!A0", "'=1", "'", "''", '="a,b"\n']
NAMED = SPECIAL.replace("\r\n", " ").replace("\n", " ")
"""As a run can be called."""
# NUL: Python 3.10's csv cannot read it
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
EXAMPLE = StoredRun(
    run_id=7,
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
    summary=recorded.RunSummary(
        n_steps=3, samples_per_s=1234.5678901234567, startup_s=-0.25, gpu_mem_peak_bytes=3e9
    ),
    error="",
    owner_host="here",
    owner_pid=1,
    owner_started=1.0,
)


def parse(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def test_the_headers_are_the_tables_of_the_records() -> None:
    last = ("error", "schema_version", "simulated", "verdict", *tables.ANSWER_DOCS)
    of_run = (
        *recorded.RUN_COLUMNS,
        *CONFIG_COLUMNS,
        "device_name",
        *recorded.SUMMARY_COLUMNS,
        *last,
    )
    assert of_run == tables.SUMMARY_HEADER
    assert ("run_id", "name", *recorded.STEP_COLUMNS, "simulated") == tables.STEPS_HEADER
    assert len(set(tables.SUMMARY_HEADER)) == len(tables.SUMMARY_HEADER)
    assert tables.summary_csv([]) == ",".join(tables.SUMMARY_HEADER) + "\r\n"
    verdict = Verdict(kind="input-bound", sentence="", simulated=False)
    rows = parse(tables.summary_csv([EXAMPLE, dataclasses.replace(EXAMPLE, verdict=verdict)]))
    assert [row["verdict"] for row in rows] == ["", "input-bound"]


def test_a_row_has_the_proven_fix_and_what_may_gain_more() -> None:
    verdict = dataclasses.replace(STARVED, advice=(BLUR,))
    run = dataclasses.replace(EXAMPLE, verdict=verdict)
    (row,) = parse(tables.summary_csv([run], {EXAMPLE.id: answer_of(verdict, [SMALL])}))
    assert (row["fix"], row["next_fix"]) == ("2 workers", "a lighter GaussianBlur")
    assert float(row["next_fix_at_most"]) == 3.22
    (alone,) = parse(tables.summary_csv([run]))
    assert (alone["fix"], alone["next_fix"]) == (BLUR.in_short, "")


def test_a_row_of_the_summary_holds_identity_config_figures_and_version() -> None:
    (row,) = parse(tables.summary_csv([EXAMPLE]))
    assert (row["run_id"], row["name"], row["status"]) == ("7", "example", "done")
    assert (row["created_utc"], row["telemetry_hz"]) == ("2026-01-01T00:00:00Z", "5.0")
    assert (row["strategy"], row["workers"], row["pin_memory"], row["evaluate"]) == (
        "workers",
        "2",
        "false",
        "true",
    )
    assert (row["device_name"], row["schema_version"]) == (
        "Zürich 9000",
        str(recorded.SCHEMA_VERSION),
    )
    assert (float(row["lr"]), float(row["samples_per_s"])) == (1e-5, 1234.5678901234567)
    assert (row["n_steps"], row["startup_s"]) == ("3", "-0.25")
    for not_available in (
        "steps",
        "seconds",
        "prefetch_factor",
        "test_accuracy",
        "gpu_util_pct_mean",
        "error",
    ):
        assert row[not_available] == ""
    (row,) = parse(
        tables.summary_csv(
            [dataclasses.replace(EXAMPLE, summary=None, environment={}, status="failed")]
        )
    )
    assert {row[name] for name in recorded.SUMMARY_COLUMNS} == {
        ""
    }  # nor a count of 0: an interrupted run has steps
    assert (row["status"], row["device_name"]) == ("failed", "")


@given(texts)
def test_any_text_is_harmless_in_a_cell_and_comes_back(text: str) -> None:
    cell = tables.cell_text(text)
    assert not cell.startswith(tables.FORMULA_STARTS)
    assert read_csv_text(cell) == text
    (row,) = parse(tables.summary_csv([dataclasses.replace(EXAMPLE, name=text)]))
    assert row["name"] == cell


def test_a_formula_is_text_and_numbers_stay_numbers_in_full_precision() -> None:
    for name in FORMULAS:
        assert tables.cell_text(name) == "'" + name
        assert tables.cell_text("x" + name) == "x" + name
    values = [
        -0.5,
        -3,
        1e-17,
        0.1 + 0.2,
        3_000_000_000,
        np.float64(-1.5),
        math.nan,
        None,
        math.inf,
        True,
        False,
        0,
    ]
    cells = [
        "-0.5",
        "-3",
        "1e-17",
        "0.30000000000000004",
        "3000000000",
        "-1.5",
        "",
        "",
        "inf",
        "true",
        "false",
        "0",
    ]
    assert [tables.cell_text(value) for value in values] == cells


@pytest.fixture
def stored(store: RunStore) -> list[StoredRun]:
    """Two runs of three steps each, with names that need care and negative figures."""
    for name, origin in ((NAMED, 50.0), ("=2", None)):
        run_id = store.create_run(RunConfig(name=name))
        store.update_run(run_id, t_origin_s=origin, status="done")
        known = {
            "t_start_s": 50.125,
            "compute_start_s": 50.5,
            "samples": 8.0,
            "warmup": 1.0,
            "gap_s": -1e-7,
        }
        row = {
            name: known.get(name, 0.0 if name in ("rank", "epoch") else math.nan)
            for name in recorded.STEP_COLUMNS
        }
        append_steps(
            store,
            run_id,
            [list((row | {"step": float(i), "loss": 0.1 * i}).values()) for i in range(3)],
        )
    return store.runs(oldest_first=True)


def test_the_steps_of_runs_can_be_laid_over_each_other(
    store: RunStore, stored: list[StoredRun]
) -> None:
    text = written(tables.write_steps_csv, store, stored).decode()
    rows = parse(text)
    assert [(r["run_id"], read_csv_text(r["name"])) for r in rows] == [("1", NAMED)] * 3 + [
        ("2", "=2")
    ] * 3
    assert [r["step"] for r in rows] == ["0", "1", "2"] * 2
    assert [float(r["loss"]) for r in rows] == [0.1 * i for i in range(3)] * 2
    assert {float(r["gap_s"]) for r in rows} == {-1e-7}
    assert {(r["samples"], r["warmup"], r["rank"], r["read_s"]) for r in rows} == {
        ("8", "1", "0", "")
    }
    assert {(r["t_start_s"], r["compute_start_s"]) for r in rows[:3]} == {
        ("0.125", "0.5")
    }  # since the run began
    assert {r["t_start_s"] for r in rows[3:]} == {"50.125"}
    empty = store.run(
        store.create_run(RunConfig(name="none"))
    )  # Arrow's buffers are longer than what is in them
    assert written(tables.write_steps_csv, store, [empty, *stored, empty]).decode() == text
    assert (
        written(tables.write_steps_csv, store, []).decode()
        == ",".join(tables.STEPS_HEADER) + "\r\n"
    )


@pytest.fixture
def runs(store: RunStore) -> list[StoredRun]:
    add_run(store, n=5, device="simulated:8,0", name="=1 <b>")
    add_run(store, n=0, status="failed")
    add_run(store, n=3)
    return store.runs(oldest_first=True)


def test_steps_are_those_of_the_csv_with_null_for_what_is_not_available(
    store: RunStore, runs: list[StoredRun]
) -> None:
    table = pq.read_table(io.BytesIO(written(tables.write_steps_parquet, store, runs)))
    assert table.column_names == list(tables.STEPS_HEADER)
    frame, text = (
        table.to_pandas(),
        pd.read_csv(io.StringIO(written(tables.write_steps_csv, store, runs).decode())),
    )
    for name in recorded.STEP_COLUMNS:
        assert frame[name].tolist() == pytest.approx(text[name].tolist(), nan_ok=True), name
    assert (
        frame["name"].tolist() == ["=1 <b>"] * 5 + [runs[2].name] * 3
    )  # no apostrophe: nothing runs it here
    assert frame["simulated"].tolist() == [True] * 5 + [False] * 3
    assert (table["worker"].null_count, table["read_s"].null_count) == (8, 0)
    types = {field.name: field.type for field in table.schema}
    assert (types["step"], types["t_start_s"], types["simulated"]) == (
        pa.int64(),
        pa.float64(),
        pa.bool_(),
    )

    schema = table.schema
    told = {
        key.decode(): value.decode()
        for key, value in schema.metadata.items()
        if key.startswith(b"vitprof.")
    }
    assert (told["vitprof.schema_version"], told["vitprof.rows"]) == (
        str(recorded.SCHEMA_VERSION),
        "steps",
    )
    assert told["vitprof.simulated"] == "true"
    assert [run["config"]["device"] for run in json.loads(told["vitprof.runs"])] == [
        "simulated:8,0",
        "cpu",
        "cpu",
    ]
    assert b"blocked in next(loader)" in schema.field("data_wait_s").metadata[b"description"]
    assert b"vitprof.runs" not in pq.read_schema(io.BytesIO(tables.summary_parquet(runs))).metadata


def test_the_summary_has_a_row_for_each_run(store: RunStore, runs: list[StoredRun]) -> None:
    assert pq.read_table(io.BytesIO(written(tables.write_steps_parquet, store, []))).num_rows == 0
    assert pq.read_table(io.BytesIO(tables.summary_parquet([]))).column_names == list(
        tables.SUMMARY_HEADER
    )
    table = pq.read_table(io.BytesIO(tables.summary_parquet([*runs, EXAMPLE])))
    assert table.column_names == list(tables.SUMMARY_HEADER)
    rows = table.to_pylist()
    assert [row["status"] for row in rows] == ["done", "failed", "done", "done"]
    assert (rows[3]["workers"], rows[3]["pin_memory"], rows[3]["lr"], rows[3]["startup_s"]) == (
        2,
        False,
        1e-5,
        -0.25,
    )
    assert rows[3]["test_accuracy"] is None  # null, not NaN
    assert rows[1]["n_steps"] is None
    assert rows[0]["samples_per_s"] == float(
        pd.read_csv(io.StringIO(tables.summary_csv(runs)))["samples_per_s"][0]
    )
    assert not any(isinstance(v, float) and math.isnan(v) for row in rows for v in row.values())


def test_the_json_object_of_a_run_is_valid_json_with_null_for_what_is_not_available() -> None:
    found = json.loads(json.dumps(tables.run_object(EXAMPLE), allow_nan=False))
    assert {
        "schema_version",
        "run_id",
        "name",
        "status",
        "config",
        "environment",
        "summary",
    } <= set(found)
    assert (found["schema_version"], found["run_id"], found["status"]) == (
        recorded.SCHEMA_VERSION,
        7,
        "done",
    )
    assert RunConfig.from_dict(found["config"]) == EXAMPLE.config
    assert list(found["summary"]) == list(recorded.SUMMARY_COLUMNS)
    assert found["summary"]["test_accuracy"] is None
    assert (found["error"], found["notices"]) == (None, ["no GPU"])
    failed = tables.run_object(
        dataclasses.replace(EXAMPLE, summary=None, status="failed", error="out of memory")
    )
    assert (failed["status"], failed["error"]) == ("failed", "out of memory")
    assert failed["summary"] is None


def test_runs_with_their_steps_are_strict_json_with_moments_since_the_run_began(
    store: RunStore,
) -> None:
    run_id = add_run(store, n=6, wait_s=0.25)
    told = {"transforms": {"Crop": {"s_per_sample": 0.001, "calls": 9}}, "made_s": math.inf}
    nan = {"odd": math.nan, "deep": [1.0, -math.inf, (math.inf, "Größe")]}
    store.update_run(
        run_id, phases=[recorded.Phase("startup", 100.5, 101.0)], environment=nan, facts=told
    )
    (run,) = json.loads(
        written(tables.write_runs_json, store, [store.run(run_id)]), parse_constant=pytest.fail
    )["runs"]
    assert run["environment"] == {"odd": None, "deep": [1.0, None, [None, "Größe"]]}
    assert run["facts"] == told | {"made_s": None}
    assert run["phases"] == [{"name": "startup", "t_start_s": 0.5, "t_end_s": 1.0}]
    assert list(run["steps"]) == list(recorded.STEP_COLUMNS)
    assert list(run["telemetry"]) == ["seq", *recorded.TELEMETRY_COLUMNS]
    assert {len(column) for column in run["steps"].values()} == {6}
    assert run["steps"]["step"] == list(range(6))
    assert run["steps"]["t_start_s"] == pytest.approx([0.255 * i for i in range(6)])
    assert run["steps"]["worker"] == [None] * 6
    assert (run["telemetry"]["t_s"], run["telemetry"]["gpu_util_pct"]) == ([0.0], [None])
    both = [store.run(run_id), store.run(add_run(store))]
    found = json.loads(written(tables.write_runs_json, store, both, series=False))
    assert found["schema_version"] == recorded.SCHEMA_VERSION
    assert [run["run_id"] for run in found["runs"]] == [1, 2]
    assert (found["runs"][0]["steps"], found["runs"][0]["telemetry"]) == (None, None)


TEXT = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8") + columns()


def section(title: str) -> list[str]:
    """The first cells of the tables under this heading."""
    body = TEXT.partition(f"# {title}\n")[2]
    assert body, title
    return [
        line.split("`")[1]
        for line in body.partition("\n#")[0].splitlines()
        if line.startswith("| `")
    ]


def test_every_column_is_there_in_its_order() -> None:
    assert section("Columns of a run") == list(tables.SUMMARY_HEADER)
    assert section("Columns of a step") == list(tables.STEPS_HEADER)
    assert section("Columns of telemetry") == list(recorded.TELEMETRY_COLUMNS)
    assert section("Columns of a setting") == list(TOURNAMENT_HEADER)
    assert [name for name in COUNTERS.values() if f"| {name} |" not in TEXT] == []
    assert f"**Schema version {recorded.SCHEMA_VERSION}**" in TEXT
