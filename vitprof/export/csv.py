"""CSV files. Column names and their order come from `vitprof.recording.columns`; docs/formats.md describes them.

UTF-8 as in RFC 4180 (comma, CRLF, quotes where needed) with units in the header. A text cell that a spreadsheet would
run as a formula gets an apostrophe in front (OWASP, "CSV Injection"), which other readers have to remove.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.config import CONFIG_COLUMNS
from vitprof.config.accelerators import is_simulated
from vitprof.export.objects import since_start
from vitprof.recording.columns import (
    RUN_COLUMNS,
    SCHEMA_VERSION,
    STEP_COLUMNS,
    SUMMARY_COLUMNS,
    StepRecord,
    columns,
    summary_to_dict,
)
from vitprof.store import RunStore, StoredRun
from vitprof.store.chunks import as_table

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
SUMMARY_HEADER = (
    *RUN_COLUMNS,
    *CONFIG_COLUMNS,
    "device_name",
    *SUMMARY_COLUMNS,
    "error",
    "schema_version",
    "simulated",
    "verdict",
)
INTEGERS = frozenset(c.name for c in columns(StepRecord) if c.integer)
STEPS_HEADER = (*RUN_COLUMNS[:2], *STEP_COLUMNS, "simulated")


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


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a whole CSV file; every cell as `cell_text` writes it."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([cell_text(v) for v in row] for row in rows)
    return out.getvalue()


def figures(run: StoredRun) -> dict[str, float | int | None]:
    """Returns the run's summary by name; all None for a run without a summary, rather than 0 steps."""
    return summary_to_dict(run.summary) if run.summary else dict.fromkeys(SUMMARY_COLUMNS)


def summary_row(run: StoredRun) -> list[object]:
    """Returns the values of a run in the order of `SUMMARY_HEADER`."""
    summary, device_name = figures(run), run.environment.get("device_name")
    return [
        run.id,
        run.name,
        run.status,
        run.created_utc,
        *(getattr(run.config, name) for name in CONFIG_COLUMNS),
        None if device_name is None else str(device_name),
        *(summary[name] for name in SUMMARY_COLUMNS),
        run.error,
        SCHEMA_VERSION,
        is_simulated(run.config.device),
        run.verdict.kind if run.verdict else None,
    ]


def summary_csv(runs: Iterable[StoredRun]) -> str:
    """Returns a CSV file with one row for each run: its config and its summary."""
    return csv_text(SUMMARY_HEADER, (summary_row(run) for run in runs))


def write_steps_csv(store: RunStore, runs: Iterable[StoredRun], file: BinaryIO) -> None:
    """Writes a CSV file with one row for each step of each run, with a few thousand rows in memory at a time.

    Moments are seconds since the start of the run, so that runs can be laid over each other.
    """
    chosen = list(runs)
    names = step_names(store, chosen)
    file.write(csv_text((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1]), ()).encode())
    for run in chosen:
        for part in store.steps_in_parts(run.id, names=names):
            file.write(_rows(run, since_start(part, run.t_origin_s or 0.0)))


def step_names(store: RunStore, runs: Iterable[StoredRun]) -> tuple[str, ...]:
    """Returns the columns of steps that these runs have: the known ones, then those of other versions."""
    return tuple(dict.fromkeys((*STEP_COLUMNS, *(name for run in runs for name in store.step_names(run.id)))))


def _rows(run: StoredRun, part: Series) -> bytes | memoryview:
    """Returns the rows of a part. A million take 3 s, a fifth of the time that Python's own `repr` of them takes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    before, after = (text.removesuffix("\r\n") for text in (_row((run.id, run.name)), _row((_simulated(run),))))
    text = pa.large_string()
    cells = [column.cast(text) for column in as_table(part, INTEGERS).columns]
    ends = (pa.scalar(before, text), pa.scalar(f"{after}\r\n", text))
    options = {"null_handling": "replace", "null_replacement": ""}
    rows = pc.binary_join_element_wise(ends[0], *cells, ends[1], pa.scalar(",", text), **options).combine_chunks()
    _, ends_at, texts = rows.buffers()  # the texts of an array are stored one after another: they are the file
    n_bytes = int(np.frombuffer(ends_at, np.int64)[len(rows)])
    return memoryview(texts)[:n_bytes] if n_bytes else b""


def _simulated(run: StoredRun) -> bool:
    return is_simulated(run.config.device)


def _row(cells: Sequence[object]) -> str:
    """Returns one row of a file, with its end."""
    out = io.StringIO(newline="")
    csv.writer(out).writerow([cell_text(value) for value in cells])
    return out.getvalue()
