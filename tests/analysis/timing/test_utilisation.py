"""The idle share of each bin, against sums by hand."""

import math
from typing import Any

import numpy as np
import pytest

from tests.series import made_telemetry
from vitprof.analysis.timing.chain import from_seconds, union
from vitprof.analysis.timing.utilisation import (
    device_memory,
    idle_share,
    sm_activity,
    sm_activity_so_far,
)
from vitprof.recording.columns import RunSummary

S = 1_000_000_000
NAN = float("nan")


def busy(*spans: tuple[float, float]) -> np.ndarray:
    return union(from_seconds(*np.array(spans, dtype=float).reshape(-1, 2).T))


def test_the_idle_share_of_bins() -> None:
    working = busy((0.0, 1.0), (2.5, 3.0), (3.5, 3.75))
    edges = np.array([0, 1, 2, 3, 4]) * S
    assert idle_share(working, edges) == pytest.approx([0, 1, 0.5, 0.75])
    assert idle_share(working, edges[[0, 4]]) == pytest.approx([2.25 / 4])
    working, evaluation = busy((0.0, 1.0), (2.0, 2.5)), busy((0.5, 2.25))
    edges = np.array([0, 1, 2, 3]) * S
    np.testing.assert_allclose(idle_share(working, edges, apart=evaluation), [0, NAN, 0.5 / 0.75])
    np.testing.assert_allclose(idle_share(working, edges, apart=busy()), idle_share(working, edges))
    np.testing.assert_array_equal(idle_share(working, np.array([S, S])), [NAN])


def test_each_figure_of_memory_has_its_own_name() -> None:
    peaks = {
        "gpu_mem_nvml_peak_bytes": 9.0,
        "gpu_mem_reserved_peak_bytes": 4.0,
        "gpu_mem_allocated_peak_bytes": 3.0,
    }
    told = [
        (figure.name, figure.n_bytes)
        for figure in device_memory(RunSummary(gpu_mem_peak_bytes=9.0, **peaks))
    ]
    assert told == [
        ("GPU memory, NVML", 9),
        ("GPU memory, reserved", 4),
        ("GPU memory, allocated", 3),
    ]
    del peaks["gpu_mem_nvml_peak_bytes"]
    assert [f.n_bytes for f in device_memory(RunSummary(gpu_mem_peak_bytes=4.0, **peaks))] == [4, 3]
    assert device_memory(RunSummary()) == []
    (figure,) = device_memory(RunSummary(gpu_mem_peak_bytes=5.0))
    assert (figure.name, figure.n_bytes) == ("GPU memory", 5)
    assert "NVML's, or PyTorch's" in figure.meaning


WHY = {"sm_activity_not_available": "this GPU has no GPM counters"}


@pytest.mark.parametrize(
    ("figures", "environment", "words"),
    [
        ((23.4, 4.0), {}, "23%, occupancy 4.0%"),
        ((23.4, 4.0), WHY, "23%, occupancy 4.0%"),  # it was had in the end
        ((23.4, math.nan), {}, "23%, occupancy n/a"),
        ((math.nan, math.nan), WHY, "not available: this GPU has no GPM counters"),
        ((math.nan, math.nan), {}, ""),
        ((math.nan, math.nan), {"sm_activity_not_available": None}, ""),
    ],
)
def test_of_a_run_that_has_ended(
    figures: tuple[float, float], environment: dict[str, Any], words: str
) -> None:
    active, occupancy = figures
    summary = RunSummary(gpu_sm_active_pct_mean=active, gpu_sm_occupancy_pct_mean=occupancy)
    found = sm_activity(summary, environment)
    assert (found.words, bool(found)) == (words, bool(words))


def test_so_far_it_is_that_since_training_began() -> None:
    telemetry = made_telemetry(
        t_s=[1, 2, 3], gpu_sm_active_pct=[90, 10, 30], gpu_sm_occupancy_pct=[9, 1, 3]
    )
    assert sm_activity_so_far(telemetry, 2.0, {}).words == "20%, occupancy 2.0%"
    assert sm_activity_so_far(telemetry, math.inf, WHY).words.startswith("not available: ")
