"""How full a GPU was while a run trained: SM activity, shown beside NVML's plain utilisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitprof import formats
from vitprof.analysis.arrays import Series, mean
from vitprof.recording.columns import RunSummary

NOT_AVAILABLE_OF_RUN = "sm_activity_not_available"
"""Fact of a run that says why it has no SM activity (`vitprof.telemetry.Telemetry.facts`)."""
MEANING = "share of the multiprocessors that were busy, and of the warps they can hold, by NVML's GPM counters"


@dataclass(frozen=True)
class SmActivity:
    """SM activity of a run, or why it has none. A run without a GPU has neither."""

    active_pct: float
    """Mean share of the multiprocessors that were busy, 0..100; NaN where it is not available."""
    occupancy_pct: float
    """Mean share of the warps the multiprocessors can hold that were in flight, 0..100."""
    why_not: str
    """Why it is not available; "" if it is, if there is no GPU, or if that is not known yet."""

    def __bool__(self) -> bool:
        """Returns whether there is anything to say."""
        return math.isfinite(self.active_pct) or bool(self.why_not)

    @property
    def words(self) -> str:
        """Returns both figures, or the reason; "" where there is neither."""
        if not self:
            return ""
        if not math.isfinite(self.active_pct):
            return f"not available: {self.why_not}"
        return f"{formats.percent(self.active_pct / 100)}, occupancy {formats.percent(self.occupancy_pct / 100)}"


def sm_activity(summary: RunSummary, environment: Mapping[str, Any]) -> SmActivity:
    """Returns the SM activity of a run that has ended; `environment` is the run's."""
    return _known(summary.gpu_sm_active_pct_mean, summary.gpu_sm_occupancy_pct_mean, environment)


def sm_activity_so_far(telemetry: Series, since_s: float, environment: Mapping[str, Any]) -> SmActivity:
    """Returns the SM activity of a running job from its samples since `since_s`, when training began."""
    since = telemetry["t_s"] >= since_s
    active, occupancy = (mean(telemetry[f"gpu_sm_{name}_pct"][since]) for name in ("active", "occupancy"))
    return _known(active, occupancy, environment)


def _known(active_pct: float, occupancy_pct: float, environment: Mapping[str, Any]) -> SmActivity:
    known = math.isfinite(active_pct)
    return SmActivity(active_pct, occupancy_pct, "" if known else str(environment.get(NOT_AVAILABLE_OF_RUN) or ""))
