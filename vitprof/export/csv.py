"""CSV files. Column names and their order come from `vitprof.records`; docs/formats.md tells them.

UTF-8 by RFC 4180 (comma, CRLF, quotes where needed) with units in the header. A text cell that a spreadsheet
would run as a formula gets an apostrophe in front (OWASP, "CSV Injection"); who reads it takes that off again.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from vitprof.config import CONFIG_COLUMNS
from vitprof.config.accelerators import is_simulated
from vitprof.export.timestamps import since_start
from vitprof.records import RUN_COLUMNS, SCHEMA_VERSION, SUMMARY_COLUMNS, StepRecord, columns, summary_to_dict
from vitprof.store import RunStore, StoredRun

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
STEPS_HEADER = (*RUN_COLUMNS[:2], *(c.name for c in columns(StepRecord)), "simulated")


def cell_text(value: object) -> str:
    """`value` as a CSV cell: numbers in full precision, nothing for what is not available, no live formulas."""
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
    """Returns the run's summary; for one that was never summed up nothing is available, not 0 steps."""
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
        (run.verdict or {}).get("kind"),
    ]


def summary_csv(runs: Iterable[StoredRun]) -> str:
    """Returns one row for each run: its config and its summary."""
    return csv_text(SUMMARY_HEADER, (summary_row(run) for run in runs))


def steps_csv(store: RunStore, runs: Iterable[StoredRun]) -> str:
    """Returns one row for each step of each run. Times since the start of the run, so that runs can be laid over each
    other.
    """
    integers = {c.name for c in columns(StepRecord) if c.integer}

    def rows() -> Iterable[list[object]]:
        for run in runs:
            series = since_start(store.steps(run.id), run.t_origin_s or 0.0)
            values = [
                series[name].astype(int).tolist() if name in integers else series[name].tolist() for name in series
            ]
            for row in zip(*values, strict=True):
                yield [run.id, run.name, *row, is_simulated(run.config.device)]

    return csv_text(STEPS_HEADER, rows())
