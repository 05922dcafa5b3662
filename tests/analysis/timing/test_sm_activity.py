"""SM activity in words: both figures, or why there are none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vitprof.analysis.timing.utilisation import sm_activity, sm_activity_so_far
from vitprof.recording.columns import RunSummary

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
def test_of_a_run_that_has_ended(figures: tuple[float, float], environment: dict[str, Any], words: str) -> None:
    active, occupancy = figures
    summary = RunSummary(gpu_sm_active_pct_mean=active, gpu_sm_occupancy_pct_mean=occupancy)
    found = sm_activity(summary, environment)
    assert (found.words, bool(found)) == (words, bool(words))


def test_so_far_it_is_that_since_training_began(make_telemetry: Any) -> None:
    telemetry = make_telemetry(t_s=[1, 2, 3], gpu_sm_active_pct=[90, 10, 30], gpu_sm_occupancy_pct=[9, 1, 3])
    assert sm_activity_so_far(telemetry, 2.0, {}).words == "20%, occupancy 2.0%"
    assert sm_activity_so_far(telemetry, math.inf, WHY).words.startswith("not available: ")
