"""Moments of a run in seconds since it began, so that runs can be laid over each other."""

from __future__ import annotations

from vitprof.analysis.arrays import Series

TIMESTAMPS = ("t_start_s", "compute_start_s", "h2d_start_s", "made_start_s", "made_end_s", "t_s")
"""Columns of steps and telemetry that are moments on the monotonic clock, not durations."""


def since_start(series: Series, origin_s: float) -> Series:
    """Returns the same columns, with moments in seconds since `origin_s`."""
    return {name: values - origin_s if name in TIMESTAMPS else values for name, values in series.items()}
