"""Parquet files say the same as the CSV files, with types, and what they hold."""

from __future__ import annotations

import io
import json
import math

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.export.test_csv import EXAMPLE
from tests.export.written import written
from tests.ui.dashboard import add_run
from vitprof.export import summary_csv, summary_parquet, write_steps_csv, write_steps_parquet
from vitprof.export.csv import STEPS_HEADER, SUMMARY_HEADER
from vitprof.recording.columns import SCHEMA_VERSION, STEP_COLUMNS
from vitprof.store import RunStore, StoredRun


@pytest.fixture
def runs(store: RunStore) -> list[StoredRun]:
    add_run(store, n=5, device="simulated:8,0", name="=1 <b>")
    add_run(store, n=0, status="failed")
    add_run(store, n=3)
    return store.runs(oldest_first=True)


def test_steps_are_those_of_the_csv_with_null_for_what_is_not_available(store: RunStore, runs: list[StoredRun]) -> None:
    table = pq.read_table(io.BytesIO(written(write_steps_parquet, store, runs)))
    assert table.column_names == list(STEPS_HEADER)
    frame, text = table.to_pandas(), pd.read_csv(io.StringIO(written(write_steps_csv, store, runs).decode()))
    for name in STEP_COLUMNS:
        assert frame[name].tolist() == pytest.approx(text[name].tolist(), nan_ok=True), name
    assert frame["name"].tolist() == ["=1 <b>"] * 5 + [runs[2].name] * 3  # no apostrophe: nothing runs it here
    assert frame["simulated"].tolist() == [True] * 5 + [False] * 3
    assert (table["worker"].null_count, table["read_s"].null_count) == (8, 0)
    types = {field.name: field.type for field in table.schema}
    assert (types["step"], types["t_start_s"], types["simulated"]) == (pa.int64(), pa.float64(), pa.bool_())


def test_the_file_says_what_it_holds(store: RunStore, runs: list[StoredRun]) -> None:
    schema = pq.read_schema(io.BytesIO(written(write_steps_parquet, store, runs)))
    told = {key.decode(): value.decode() for key, value in schema.metadata.items() if key.startswith(b"vitprof.")}
    assert (told["vitprof.schema_version"], told["vitprof.rows"]) == (str(SCHEMA_VERSION), "steps")
    assert told["vitprof.simulated"] == "true"
    assert [run["config"]["device"] for run in json.loads(told["vitprof.runs"])] == ["simulated:8,0", "cpu", "cpu"]
    assert b"blocked in next(loader)" in schema.field("data_wait_s").metadata[b"description"]
    assert b"vitprof.runs" not in pq.read_schema(io.BytesIO(summary_parquet(runs))).metadata


def test_the_summary_has_a_row_for_each_run(runs: list[StoredRun]) -> None:
    table = pq.read_table(io.BytesIO(summary_parquet([*runs, EXAMPLE])))
    assert table.column_names == list(SUMMARY_HEADER)
    rows = table.to_pylist()
    assert [row["status"] for row in rows] == ["done", "failed", "done", "done"]
    assert (rows[3]["workers"], rows[3]["pin_memory"], rows[3]["lr"], rows[3]["startup_s"]) == (2, False, 1e-5, -0.25)
    assert rows[3]["test_accuracy"] is None  # null, not NaN
    assert rows[1]["n_steps"] is None
    assert rows[0]["samples_per_s"] == float(pd.read_csv(io.StringIO(summary_csv(runs)))["samples_per_s"][0])
    assert not any(isinstance(v, float) and math.isnan(v) for row in rows for v in row.values())


def test_no_runs_make_a_table_without_rows(store: RunStore) -> None:
    assert pq.read_table(io.BytesIO(written(write_steps_parquet, store, []))).num_rows == 0
    assert pq.read_table(io.BytesIO(summary_parquet([]))).column_names == list(SUMMARY_HEADER)
