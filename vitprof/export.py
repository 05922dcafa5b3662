"""What leaves vitprof: CSV files and JSON objects. Column names and their order come from `vitprof.records`.

CSV is UTF-8 by RFC 4180 (comma, CRLF, quotes where needed) with units in the header. A text cell that a spreadsheet
would run as a formula gets an apostrophe in front (OWASP, "CSV Injection"); `read_csv_text` takes it off again.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vitprof.accelerators import is_simulated
from vitprof.config import CONFIG_COLUMNS
from vitprof.errors import VitprofError
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
)
STEPS_HEADER = (*RUN_COLUMNS[:2], *(c.name for c in columns(StepRecord)), "simulated")


MOMENTS = ("t_start_s", "compute_start_s", "h2d_start_s", "made_start_s", "made_end_s")
"""Columns of steps that are moments on the monotonic clock, not durations."""


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


def read_csv_text(cell: str) -> str:
    """A text cell as it was before `cell_text` made it harmless."""
    return cell[1:] if cell.startswith("'") else cell


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([cell_text(v) for v in row] for row in rows)
    return out.getvalue()


def _figures(run: StoredRun) -> dict[str, float | int | None]:
    """The run's summary; for one that was never summed up nothing is available, not 0 steps."""
    return summary_to_dict(run.summary) if run.summary else dict.fromkeys(SUMMARY_COLUMNS)


def _summary_row(run: StoredRun) -> list[object]:
    summary = _figures(run)
    return [
        run.id,
        run.name,
        run.status,
        run.created_utc,
        *(getattr(run.config, name) for name in CONFIG_COLUMNS),
        run.environment.get("device_name"),
        *(summary[name] for name in SUMMARY_COLUMNS),
        run.error,
        SCHEMA_VERSION,
        is_simulated(run.config.device),
    ]


def summary_csv(runs: Iterable[StoredRun]) -> str:
    """One row for each run: its config and its summary."""
    return _csv(SUMMARY_HEADER, (_summary_row(run) for run in runs))


def steps_csv(store: RunStore, runs: Iterable[StoredRun]) -> str:
    """One row for each step of each run. Times since the start of the run, so that runs can be laid over each other."""
    integers = {c.name for c in columns(StepRecord) if c.integer}

    def rows() -> Iterable[list[object]]:
        for run in runs:
            series = store.steps(run.id)
            for name in MOMENTS:
                series[name] = series[name] - (run.t_origin_s or 0.0)
            values = [
                series[name].astype(int).tolist() if name in integers else series[name].tolist() for name in series
            ]
            for row in zip(*values, strict=True):
                yield [run.id, run.name, *row, is_simulated(run.config.device)]

    return _csv(STEPS_HEADER, rows())


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none: to a temporary name, then renamed. Raises `VitprofError`."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device, such as /dev/stdout
            path.write_text(text, encoding="utf-8", newline="")
            return
        target = path.resolve()  # of a link, the file it leads to is replaced, not the link
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8", newline="")
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):  # gone after the rename; else the first error is the one to tell
                temporary.unlink()
    except OSError as error:
        raise VitprofError(f"{path} cannot be written: {error.strerror or error}") from error


def run_object(run: StoredRun) -> dict[str, Any]:
    """A run as one JSON object; figures that are not available are null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.id,
        "name": run.name,
        "status": run.status,
        "created_utc": run.created_utc,
        "config": run.config.to_dict(),
        "simulated": is_simulated(run.config.device),
        "environment": run.environment,
        "verdict": run.verdict,
        "summary": _figures(run),
        "notices": list(run.notices),
        "error": run.error or None,
    }
