"""What others took: the mean is told, the quartile says whether it lasts, and only the steady state counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitprof.analysis.arrays import Series
from vitprof.analysis.signatures.resources import MIN_CPU_SAMPLES, others_cpu

STEPS = {"t_start_s": np.linspace(90, 110, 21), "epoch": np.zeros(21), "warmup": np.repeat([1.0, 0.0], [10, 11])}
"""Steady from 100 to 110 s."""
FOUR = {"cpu_count": 4}


def seen(machine: np.ndarray, job: float = 100.0) -> Series:
    """Telemetry over the steady state, with a busy machine in the warm-up and after the last step."""
    t = np.concatenate([[95.0], np.linspace(100, 110, len(machine)), [120.0]])
    return {"t_s": t, "cpu_pct": np.concatenate([[100.0], machine, [100.0]]), "job_cpu_pct": np.full(len(t), job)}


def test_a_burst_counts_by_its_time_and_does_not_last() -> None:
    """Of four cores the job takes one, another program two in three of sixteen samples."""
    found = others_cpu(STEPS, seen(np.array([75.0] * 3 + [25.0] * 13)), FOUR)
    assert (found.cores, found.lasting_cores, found.machine_pct) == (pytest.approx(2 * 3 / 16), 0, 25)


def test_a_neighbour_lasts() -> None:
    found = others_cpu(STEPS, seen(np.array([75.0] * 13 + [25.0] * 3)), FOUR)
    assert (found.cores, found.lasting_cores, found.machine_pct) == (pytest.approx(2 * 13 / 16), 2, 75)


def test_what_is_not_known_is_passed_over() -> None:
    few = others_cpu(STEPS, seen(np.array([50.0, math.nan])), FOUR)
    assert few.cores == 1
    assert math.isnan(few.lasting_cores), f"{MIN_CPU_SAMPLES} samples are needed"
    nothing = {name: values[:0] for name, values in STEPS.items()}
    for steps, environment in ((STEPS, {}), (nothing, FOUR)):
        found = others_cpu(steps, seen(np.full(20, 50.0)), environment)
        assert math.isnan(found.cores)
        assert math.isnan(found.lasting_cores)
