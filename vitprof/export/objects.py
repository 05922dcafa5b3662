"""Runs as JSON: RFC 8259, so null stands for what is not available, never NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from vitprof.analysis.arrays import Series
from vitprof.config.accelerators import is_simulated
from vitprof.export.csv import figures
from vitprof.export.timestamps import since_start
from vitprof.records import SCHEMA_VERSION, StepRecord, columns
from vitprof.store import RunStore, StoredRun

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


def runs_object(store: RunStore, runs: Iterable[StoredRun], *, steps: bool = False) -> dict[str, Any]:
    """Returns runs as one JSON object; with `steps` each has its phases, and its steps and telemetry by column.

    Moments are seconds since the run began, as in the CSV files.
    """
    found = []
    for run in runs:
        one = run_object(run)
        if steps:
            origin = run.t_origin_s or 0.0
            one["phases"] = [
                {"name": p.name, "t_start_s": p.t_start_s - origin, "t_end_s": p.t_end_s - origin} for p in run.phases
            ]
            one["steps"] = _by_column(since_start(store.steps(run.id), origin))
            one["telemetry"] = _by_column(since_start(store.telemetry(run.id), origin))
        found.append(strict(one))
    return {"schema_version": SCHEMA_VERSION, "runs": found}


def runs_json(store: RunStore, runs: Iterable[StoredRun], *, steps: bool = True) -> str:
    """`runs_object` as text, one line."""
    return json.dumps(runs_object(store, runs, steps=steps), allow_nan=False, ensure_ascii=False) + "\n"


def strict(value: Any) -> Any:
    """`value` with None for every number in it that JSON has no way to write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(part) for part in value]
    return value


def _by_column(series: Series) -> dict[str, list[float | int | None]]:
    return {
        name: values.astype(int).tolist()
        if name in INTEGERS
        else [v if math.isfinite(v) else None for v in values.tolist()]
        for name, values in series.items()
    }
