"""Runs as JSON (RFC 8259): null for what is not available, never NaN."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.recording import codec
from vitprof.recording.columns import SCHEMA_VERSION, StepRecord, columns
from vitprof.recording.recording import Recording
from vitprof.store import RunStore, StoredRun

NUMBERS_AT_ONCE = 100_000
TIMESTAMPS = ("t_start_s", "compute_start_s", "h2d_start_s", "made_start_s", "made_end_s", "t_s")
"""Columns of steps and telemetry that are moments on the monotonic clock, not durations."""
INTEGERS = frozenset(c.name for c in columns(StepRecord) if c.integer) | {"seq"}


def run_object(run: StoredRun, tags: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a run as one JSON object, a `Recording` without series; its phases count from the run's beginning."""
    origin = run.t_origin_s or 0.0
    phases = [dataclasses.replace(p, t_start_s=p.t_start_s - origin, t_end_s=p.t_end_s - origin) for p in run.phases]
    shown = dataclasses.replace(run, phases=tuple(phases), tags=tuple(tags))
    plain: dict[str, Any] = codec.to_plain(shown, Recording)
    return plain | {"error": run.error or None}


def runs_json(store: RunStore, runs: Iterable[StoredRun]) -> str:
    """Returns runs as one JSON object on one line, without steps and telemetry."""
    objects = [run_object(run, store.tags(run.id)) for run in runs]
    return _json({"schema_version": SCHEMA_VERSION, "runs": objects}) + "\n"


def write_runs_json(store: RunStore, runs: Iterable[StoredRun], file: BinaryIO) -> None:
    """Writes runs as one JSON object on one line; each has its steps and telemetry, by column.

    Moments are seconds since the run began, as in the CSV files. Only `NUMBERS_AT_ONCE` numbers at a time become Python
    objects: a million steps take the memory of their arrays.
    """
    file.write(_json({"schema_version": SCHEMA_VERSION, "runs": []}).removesuffix("]}").encode())
    for number, run in enumerate(runs):
        about = run_object(run, store.tags(run.id))
        about = {name: value for name, value in about.items() if name not in ("steps", "telemetry")}
        file.write(f"{', ' if number else ''}{_json(about).removesuffix('}')}".encode())
        for name, series in (("steps", store.steps(run.id)), ("telemetry", store.telemetry(run.id))):
            file.write(f', "{name}": '.encode())
            _write_columns(since_start(series, run.t_origin_s or 0.0), file)
        file.write(b"}")
    file.write(b"]}\n")


def since_start(series: Series, origin_s: float) -> Series:
    """Returns the same columns, with moments in seconds since `origin_s`, so that runs can be laid over each other."""
    return {name: values - origin_s if name in TIMESTAMPS else values for name, values in series.items()}


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
