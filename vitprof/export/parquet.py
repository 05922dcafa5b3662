"""Parquet files: the columns of the CSV files with their types, null for what is not available.

The file's metadata has the schema version, what the rows are and whether any run was simulated; in a file of steps also
each run's settings and figures as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, BinaryIO

from vitprof.config import RunConfig
from vitprof.config.accelerators import is_simulated
from vitprof.config.run_config import types_of
from vitprof.export.csv import STEPS_HEADER, SUMMARY_HEADER, step_names, summary_row
from vitprof.export.objects import run_object, since_start
from vitprof.recording.columns import SCHEMA_VERSION, RunSummary, StepRecord, columns
from vitprof.store import RunStore, StoredRun
from vitprof.store.chunks import as_table

if TYPE_CHECKING:  # 60 ms to import, and most sessions export nothing
    import pyarrow as pa

DOCS: dict[str, str] = {c.name: c.doc for record in (StepRecord, RunSummary) for c in columns(record)} | {
    f.name: str(f.metadata.get("description", "")) for f in dataclasses.fields(RunConfig) if f.name != "name"
}
"""Column -> what it means: the description of each field in a file."""
ROW_GROUP = 131_072
"""Rows of a row group: 35 MB of memory while it is written; readers load as many at once."""
INTEGERS = frozenset(c.name for record in (StepRecord, RunSummary) for c in columns(record) if c.integer)


def write_steps_parquet(store: RunStore, runs: Sequence[StoredRun], file: BinaryIO) -> None:
    """Writes a Parquet file with one row for each step of each run, with one row group in memory at a time.

    Columns are as in `STEPS_HEADER`; moments are seconds since the run began.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = step_names(store, runs)
    schema = _schema((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1]), "steps", runs)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for run in runs:
            for part in store.steps_in_parts(run.id, names=names, rows=ROW_GROUP):
                steps = as_table(since_start(part, run.t_origin_s or 0.0), INTEGERS)
                if n := steps.num_rows:
                    known = (run.id, run.name, is_simulated(run.config.device))
                    run_id, name, simulated = (pa.repeat(value, n) for value in known)
                    table = pa.Table.from_arrays([run_id, name, *steps.columns, simulated], schema=schema)
                    writer.write_table(table, row_group_size=ROW_GROUP)


def summary_parquet(runs: Sequence[StoredRun]) -> bytes:
    """Returns a Parquet file with one row for each run, columns as in `SUMMARY_HEADER`."""
    import pyarrow as pa

    schema = _schema(SUMMARY_HEADER, "summary", runs)
    rows = [summary_row(run) for run in runs]
    arrays = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return _file(pa.table(arrays, schema=schema))


def _schema(header: Iterable[str], rows: str, runs: Sequence[StoredRun]) -> pa.Schema:
    import pyarrow as pa

    metadata = {
        "vitprof.schema_version": str(SCHEMA_VERSION),
        "vitprof.rows": rows,
        "vitprof.simulated": json.dumps(any(is_simulated(run.config.device) for run in runs)),
    }
    if rows == "steps":
        metadata["vitprof.runs"] = json.dumps([run_object(run) for run in runs])
    fields = [pa.field(n, _type(n), metadata={"description": DOCS[n]} if DOCS.get(n) else None) for n in header]
    return pa.schema(fields, metadata=metadata)


def _type(name: str) -> pa.DataType:
    """Returns the type of a column: that of the record's or the config's field, else text."""
    import pyarrow as pa

    if name in ("run_id", "schema_version") or name in INTEGERS:
        return pa.int64()
    if name == "simulated":
        return pa.bool_()
    if name not in (*STEPS_HEADER, *SUMMARY_HEADER):  # a column of steps that only another version knows
        return pa.float64()
    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    settings = {name: kind for name, (kind, *_) in types_of(RunConfig).items()}
    figures = {c.name: float for record in (StepRecord, RunSummary) for c in columns(record)}
    return kinds.get((figures | settings).get(name, str), pa.string())


def _file(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return bytes(out.getvalue())
