"""Converts steps and telemetry to bytes and back, and checks in each column what the analysis relies on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.export.bundle.run_values import MAX_TIME_S, BundledRun
from vitprof.export.bundle.values import need
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, StepRecord, columns

WHOLE = tuple(c.name for c in columns(StepRecord) if c.integer)
MAX_WHOLE = 2.0**31
"""Numbers of steps and epochs, and samples of a batch, are below that."""


def to_bytes(series: Series, names: tuple[str, ...]) -> bytes:
    """Returns the columns one after another as little-endian float64; infinities become NaN."""
    matrix = np.stack([series[name] for name in names]) if names else np.empty((0, 0))
    return np.where(np.isfinite(matrix), matrix, np.nan).astype("<f8").tobytes()


def steps_of(run: BundledRun, data: bytes, what: str) -> Series:
    """Returns the steps of a run, (n,) each, in the order of the store. Raises `BundleError`."""
    series = _columns(run.step_columns, run.n_steps, data, STEP_COLUMNS, what)
    for name in WHOLE:
        values = series[name]  # NaN where the column is not in the file
        whole = np.all((values >= 0) & (values < MAX_WHOLE) & (values % 1 == 0))
        need(name in run.step_columns and whole, f"{what}: {name} has to be whole numbers")
    ascending = np.diff(series["step"]) > 0
    again = np.diff(series["step"]) == 0  # another rank's part of the same step
    need(np.all(ascending | (again & (np.diff(series["rank"]) > 0))), f"{what}: its steps are not in order")
    by_rank = np.argsort(series["rank"], kind="stable")  # one sort, as a sender may give each step a rank of its own
    same = np.diff(series["rank"][by_rank]) == 0
    back = [np.diff(series[name][by_rank]) < 0 for name in ("t_start_s", "epoch")]
    in_time = np.all(np.isfinite(series["t_start_s"])) and not np.any(same & (back[0] | back[1]))
    need(in_time, f"{what}: its steps are not in the order of time")
    for name in STEP_COLUMNS:
        too_long = name.endswith("_s") and np.any(np.abs(series[name]) > MAX_TIME_S)
        need(not too_long, f"{what}: {name} has times that no clock shows")
    return series


def telemetry_of(run: BundledRun, data: bytes, what: str) -> Series:
    """Returns the telemetry of a run, (n,) each, numbered as "seq". Raises `BundleError`."""
    series = _columns(run.telemetry_columns, run.n_telemetry, data, TELEMETRY_COLUMNS, what)
    in_time = np.all(np.abs(series["t_s"]) <= MAX_TIME_S) and np.all(np.diff(series["t_s"]) >= 0)
    need(in_time, f"{what}: its samples are not in the order of time")
    return {"seq": np.arange(run.n_telemetry, dtype=np.float64), **series}


def _columns(names: Sequence[str], n: int, data: bytes, known: tuple[str, ...], what: str) -> Series:
    """Returns every known column, (n,) float64 each; those that are not in the file are NaN. Raises `BundleError`."""
    new = len(set(names)) < len(names) or not set(names) <= set(known)
    need(not new, f"{what}: it has columns that this vitprof does not know")
    need(len(data) == 8 * n * len(names), f"{what}: its columns are not as long as run-N.json says")
    matrix = np.frombuffer(data, "<f8").reshape(len(names), n)
    need(not np.any(np.isinf(matrix)), f"{what}: a number in it is too large")
    given = dict(zip(names, matrix, strict=True))
    return {name: given.get(name, np.full(n, np.nan)).astype(np.float64) for name in known}
