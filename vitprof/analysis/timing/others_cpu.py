"""The CPU that other programs took while a run trained: one rule for verdicts, comparisons and tournaments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series, mean
from vitprof.analysis.timing.steady import while_steady

MIN_CPU_SAMPLES = 10
"""Two seconds of telemetry at the usual 5 a second; a quartile of fewer samples says little."""
LASTING_PERCENTILE = 25


@dataclass(frozen=True)
class OthersCpu:
    """The CPU that other programs used over the steady state; NaN where not known."""

    cores: float
    """Mean, in cores: the figure that is shown, and by which runs are compared. A program that takes two cores half of
    the time takes as much from a job as one that takes one core all the time. May be slightly below 0: the machine and
    the job are read a moment apart."""
    lasting_cores: float
    """Lower quartile, in cores: in three quarters of the samples they took at least this. It says whether there is a
    lasting neighbour: a short burst raises the mean, but not this."""
    machine_pct: float
    """Median use of all cores together, the job's included, in percent: whether cores were left over."""


def others_cpu(steps: Series, telemetry: Series, environment: Mapping[str, Any]) -> OthersCpu:
    """Returns what other programs used: the use of the whole machine minus that of the job's processes.

    `steps` needs t_start_s, epoch and warmup; `telemetry` t_s, cpu_pct and job_cpu_pct; `environment` cpu_count. The
    quartile and the machine's use are NaN with fewer than `MIN_CPU_SAMPLES`.
    """
    cores = float(environment.get("cpu_count") or math.nan)
    inside = while_steady(steps, telemetry["t_s"])
    machine_pct, job_pct = telemetry["cpu_pct"][inside], telemetry["job_cpu_pct"][inside]
    others = (machine_pct * cores - job_pct) / 100
    known = np.isfinite(others)
    if known.sum() < MIN_CPU_SAMPLES:
        return OthersCpu(mean(others), math.nan, math.nan)
    lasting = float(np.percentile(others[known], LASTING_PERCENTILE))
    return OthersCpu(mean(others), lasting, float(np.median(machine_pct[known])))
