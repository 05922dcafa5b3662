"""What others took: a mean over the run's own time."""

from __future__ import annotations

import math

import numpy as np

from vitprof.analysis.compare.other_programs import others_cores

STEPS = np.linspace(100, 110, 11)


def test_bursts_count_by_their_time() -> None:
    """Of four cores the job takes one, another program two in three of eight samples, and all before and after."""
    t = np.array([90.0, *np.arange(101, 109), 120])
    machine = np.array([100.0, *[75.0] * 3, *[25.0] * 5, 100])
    seen = {"t_s": t, "cpu_pct": machine, "job_cpu_pct": np.full(10, 100.0)}
    assert others_cores(STEPS, seen, {"cpu_count": 4}) == 0.75


def test_what_is_not_known_is_passed_over() -> None:
    seen = {"t_s": np.array([101.0, 102]), "cpu_pct": np.array([50.0, math.nan]), "job_cpu_pct": np.array([100.0, 100])}
    assert others_cores(STEPS, seen, {"cpu_count": 4}) == 1
    assert math.isnan(others_cores(STEPS, seen, {}))
    assert math.isnan(others_cores(STEPS[:0], seen, {"cpu_count": 4}))
