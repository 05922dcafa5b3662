"""Runs and their steps as CSV, Parquet and JSON, from `vitprof.recording.columns`; see docs/formats.md. CSV is as in
RFC 4180; a text cell that a spreadsheet would run as a formula gets an apostrophe in front (OWASP, "CSV Injection").
Parquet and JSON (RFC 8259) have null, never NaN. Parquet's metadata has the schema version, what the rows are, whether
any run was simulated, and each run's settings and figures.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.config import CONFIG_COLUMNS, RunConfig, types_of
from vitprof.recording import codec, columns, recording
from vitprof.store import RunStore, StoredRun, chunks

FORMULA_STARTS = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r")
"""With the full-width forms, which spreadsheets of some languages take for the same."""
SUMMARY_HEADER = (
    *(*columns.RUN_COLUMNS, *CONFIG_COLUMNS, "device_name", *columns.SUMMARY_COLUMNS),
    *("error", "schema_version", "simulated", "verdict"),
)
STEPS_HEADER = (*columns.RUN_COLUMNS[:2], *columns.STEP_COLUMNS, "simulated")
FIGURES = (*columns.columns(columns.StepRecord), *columns.columns(columns.RunSummary))
INTEGERS = frozenset(c.name for c in FIGURES if c.integer) | {"seq"}
TIMESTAMPS = ("t_start_s", "compute_start_s", "h2d_start_s", "made_start_s", "made_end_s", "t_s")
"""Columns of steps and telemetry that are moments on the monotonic clock, not durations."""
DOCS: dict[str, str] = {c.name: c.doc for c in FIGURES} | {
    f.name: str(f.metadata.get("description", "")) for f in dataclasses.fields(RunConfig) if f.name != "name"
}
"""Column -> what it means: the description of each field in a Parquet file."""
KINDS: dict[str, type] = (
    dict.fromkeys((*STEPS_HEADER, *SUMMARY_HEADER), str)
    | {name: kind for name, (kind, *_) in types_of(RunConfig).items()}
    | {c.name: int if c.integer else float for c in FIGURES}
    | {"run_id": int, "schema_version": int, "simulated": bool}
)
ARROW = {int: "int64", float: "float64", bool: "bool"}
ROW_GROUP = 131_072
"""Rows of a row group: 35 MB of memory while it is written; readers load as many at once."""
NUMBERS_AT_ONCE = 100_000


def since_start(series: Series, origin_s: float | None) -> Series:
    """Returns the same columns, with moments in seconds since `origin_s`, so that runs can be laid over each other."""
    return {name: values - (origin_s or 0.0) if name in TIMESTAMPS else values for name, values in series.items()}


def step_names(store: RunStore, runs: Iterable[StoredRun]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*columns.STEP_COLUMNS, *(name for run in runs for name in store.step_names(run.id)))))


def figures(run: StoredRun) -> dict[str, float | int | None]:
    return columns.summary_to_dict(run.summary) if run.summary else dict.fromkeys(columns.SUMMARY_COLUMNS)


def summary_row(run: StoredRun) -> list[object]:
    summary, device_name = figures(run), run.environment.get("device_name")
    return [
        *(getattr(run, name) for name in columns.RUN_COLUMNS),
        *(getattr(run.config, name) for name in CONFIG_COLUMNS),
        None if device_name is None else str(device_name),
        *(summary[name] for name in columns.SUMMARY_COLUMNS),
        *(run.error, columns.SCHEMA_VERSION, run.simulated, run.verdict.kind if run.verdict else None),
    ]


# CSV


def cell_text(value: object) -> str:
    """Returns `value` as a CSV cell: numbers in full precision, "" for what is not available, no live formulas."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))  # NumPy's own repr is no number
    if isinstance(value, int):
        return repr(value)
    text = str(value)
    return "'" + text if text.startswith((*FORMULA_STARTS, "'")) else text


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]] = ()) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([cell_text(v) for v in row] for row in rows)
    return out.getvalue()


def summary_csv(runs: Iterable[StoredRun]) -> str:
    return csv_text(SUMMARY_HEADER, map(summary_row, runs))


def write_steps_csv(store: RunStore, runs: Sequence[StoredRun], file: BinaryIO) -> None:
    """Writes a row for each step, a few thousand in memory at a time; moments are seconds since the run began."""
    names = step_names(store, runs)
    file.write(csv_text((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1])).encode())
    for run in runs:
        for part in store.steps_in_parts(run.id, names=names):
            file.write(_rows(run, since_start(part, run.t_origin_s)))


def _rows(run: StoredRun, part: Series) -> bytes | memoryview:
    """Returns the rows of a part. A million take 3 s, a fifth of the time that Python's own `repr` of them takes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    before, after = (csv_text(map(cell_text, known)) for known in ((run.id, run.name), (run.simulated,)))
    text = pa.large_string()
    cells = [column.cast(text) for column in chunks.as_table(part, INTEGERS).columns]
    ends = (pa.scalar(before.removesuffix("\r\n"), text), pa.scalar(after, text))
    options = {"null_handling": "replace", "null_replacement": ""}
    rows = pc.binary_join_element_wise(ends[0], *cells, ends[1], pa.scalar(",", text), **options).combine_chunks()
    _, ends_at, texts = rows.buffers()  # the texts of an array are stored one after another: they are the file
    n_bytes = int(np.frombuffer(ends_at, np.int64)[len(rows)])
    return memoryview(texts)[:n_bytes] if n_bytes else b""


# Parquet


def write_steps_parquet(store: RunStore, runs: Sequence[StoredRun], file: BinaryIO) -> None:
    """Writes a row for each step, one row group in memory at a time; moments are seconds since the run began."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = step_names(store, runs)
    schema = _schema((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1]), "steps", runs)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for run in runs:
            for part in store.steps_in_parts(run.id, names=names, rows=ROW_GROUP):
                steps = chunks.as_table(since_start(part, run.t_origin_s), INTEGERS)
                if n := steps.num_rows:
                    run_id, name, simulated = (pa.repeat(value, n) for value in (run.id, run.name, run.simulated))
                    table = pa.Table.from_arrays([run_id, name, *steps.columns, simulated], schema=schema)
                    writer.write_table(table, row_group_size=ROW_GROUP)


def summary_parquet(runs: Sequence[StoredRun]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, rows = _schema(SUMMARY_HEADER, "summary", runs), [summary_row(run) for run in runs]
    arrays = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays, schema=schema), out, compression="zstd")
    return bytes(out.getvalue())


def _schema(header: Iterable[str], rows: str, runs: Sequence[StoredRun]) -> Any:
    import pyarrow as pa

    metadata = {
        "vitprof.schema_version": str(columns.SCHEMA_VERSION),
        "vitprof.rows": rows,
        "vitprof.simulated": json.dumps(any(run.simulated for run in runs)),
    }
    if rows == "steps":
        metadata["vitprof.runs"] = json.dumps([run_object(run) for run in runs])
    kinds = ((name, pa.type_for_alias(ARROW.get(KINDS.get(name, float), "string"))) for name in header)
    fields = [pa.field(n, kind, metadata={"description": DOCS[n]} if DOCS.get(n) else None) for n, kind in kinds]
    return pa.schema(fields, metadata=metadata)


# JSON


def run_object(run: StoredRun, tags: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a run as one JSON object, a `Recording` without series; its phases count from the run's beginning."""
    origin = run.t_origin_s or 0.0
    phases = [dataclasses.replace(p, t_start_s=p.t_start_s - origin, t_end_s=p.t_end_s - origin) for p in run.phases]
    shown = dataclasses.replace(run, phases=tuple(phases), tags=tuple(tags))
    plain: dict[str, Any] = codec.to_plain(shown, recording.Recording)
    return plain | {"error": run.error or None}


def runs_json(store: RunStore, runs: Iterable[StoredRun]) -> str:
    objects = [run_object(run, store.tags(run.id)) for run in runs]
    return _json({"schema_version": columns.SCHEMA_VERSION, "runs": objects}) + "\n"


def write_runs_json(store: RunStore, runs: Iterable[StoredRun], file: BinaryIO) -> None:
    """Writes runs with their series as a line of JSON, `NUMBERS_AT_ONCE` numbers at a time."""
    file.write(_json({"schema_version": columns.SCHEMA_VERSION, "runs": []}).removesuffix("]}").encode())
    for number, run in enumerate(runs):
        about = run_object(run, store.tags(run.id))
        about = {name: value for name, value in about.items() if name not in ("steps", "telemetry")}
        file.write(f"{', ' if number else ''}{_json(about).removesuffix('}')}".encode())
        for name, series in (("steps", store.steps(run.id)), ("telemetry", store.telemetry(run.id))):
            file.write(f', "{name}": '.encode())
            _write_columns(since_start(series, run.t_origin_s), file)
        file.write(b"}")
    file.write(b"]}\n")


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _write_columns(series: Series, file: BinaryIO) -> None:
    for number, (name, values) in enumerate(series.items()):
        file.write(f"{', ' if number else '{'}{_json(name)}: [".encode())
        for first in range(0, len(values), NUMBERS_AT_ONCE):
            part = values[first : first + NUMBERS_AT_ONCE]
            whole = name in INTEGERS
            plain: list[Any] = part.astype(int).tolist() if whole else part.tolist()
            for unknown in [] if whole else np.flatnonzero(~np.isfinite(part)).tolist():
                plain[unknown] = None
            file.write(((", " if first else "") + _json(plain)[1:-1]).encode())
        file.write(b"]")
    file.write(b"}")
