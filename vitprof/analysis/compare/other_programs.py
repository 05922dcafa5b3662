"""What other programs took of the CPU while a run trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series, mean


def while_training(t_start_s: Floats, t_s: Floats) -> Mask:
    """Returns which of the telemetry's moments lie between the first step's start and the last one's."""
    if not len(t_start_s):
        return np.zeros(len(t_s), dtype=bool)
    return np.asarray((t_s >= t_start_s[0]) & (t_s <= t_start_s[-1]))


def others_cores(t_start_s: Floats, telemetry: Series, environment: Mapping[str, Any]) -> float:
    """Returns the CPU cores that other programs used while a run trained; NaN where it is not known.

    `t_start_s` are the starts of its steps; `telemetry` needs t_s, cpu_pct and job_cpu_pct. It is the mean, not the
    median: a program that takes two cores half of the time takes as much as one that takes one core all the time.
    """
    inside = while_training(t_start_s, telemetry["t_s"])
    cores = float(environment.get("cpu_count") or math.nan)
    return mean((telemetry["cpu_pct"] * cores - telemetry["job_cpu_pct"])[inside] / 100)
