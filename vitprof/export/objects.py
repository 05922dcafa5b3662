"""Runs as JSON (RFC 8259): null for what is not available, never NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.config.accelerators import is_simulated
from vitprof.export.csv import figures
from vitprof.export.timestamps import since_start
from vitprof.recording.columns import SCHEMA_VERSION, StepRecord, columns
from vitprof.store import RunStore, StoredRun

NUMBERS_AT_ONCE = 100_000
INTEGERS = frozenset(c.name for c in columns(StepRecord) if c.integer) | {"seq"}


def run_object(run: StoredRun) -> dict[str, Any]:
    """Returns a run as one JSON object; figures that are not available are null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.id,
        "name": run.name,
        "status": run.status,
        "created_utc": run.created_utc,
        "config": run.config.to_dict(),
        "simulated": is_simulated(run.config.device),
        "environment": strict(run.environment),
        "facts": strict(run.facts),
        "verdict": run.verdict,
        "summary": figures(run),
        "notices": list(run.notices),
        "error": run.error or None,
    }


def runs_json(runs: Iterable[StoredRun]) -> str:
    """Returns runs as one JSON object on one line, without steps and telemetry."""
    return _json({"schema_version": SCHEMA_VERSION, "runs": [strict(run_object(run)) for run in runs]}) + "\n"


def write_runs_json(store: RunStore, runs: Iterable[StoredRun], file: BinaryIO) -> None:
    """Writes runs as one JSON object on one line; each has its phases, and its steps and telemetry by column.

    Moments are seconds since the run began, as in the CSV files. Only `NUMBERS_AT_ONCE` numbers at a time become Python
    objects: a million steps take the memory of their arrays.
    """
    file.write(_json({"schema_version": SCHEMA_VERSION, "runs": []}).removesuffix("]}").encode())
    for number, run in enumerate(runs):
        origin = run.t_origin_s or 0.0
        phases = [
            {"name": p.name, "t_start_s": p.t_start_s - origin, "t_end_s": p.t_end_s - origin} for p in run.phases
        ]
        one = strict(run_object(run) | {"phases": phases})
        file.write(f"{', ' if number else ''}{_json(one).removesuffix('}')}".encode())
        for name, series in (("steps", store.steps(run.id)), ("telemetry", store.telemetry(run.id))):
            file.write(f', "{name}": '.encode())
            _write_columns(since_start(series, origin), file)
        file.write(b"}")
    file.write(b"]}\n")


def strict(value: Any) -> Any:
    """Returns `value` with None in place of every NaN and infinity in it, and plain dicts and lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(part) for part in value]
    return value


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _write_columns(series: Series, file: BinaryIO) -> None:
    """Writes an object that has a list for each column; null for what is not available."""
    for number, (name, values) in enumerate(series.items()):
        file.write(f"{', ' if number else '{'}{_json(name)}: [".encode())
        for first in range(0, len(values), NUMBERS_AT_ONCE):
            part = values[first : first + NUMBERS_AT_ONCE]
            if name in INTEGERS:
                plain: list[Any] = part.astype(int).tolist()
            else:
                plain = part.tolist()
                for unknown in np.flatnonzero(~np.isfinite(part)).tolist():
                    plain[unknown] = None
            file.write(((", " if first else "") + _json(plain)[1:-1]).encode())
        file.write(b"]")
    file.write(b"}")
