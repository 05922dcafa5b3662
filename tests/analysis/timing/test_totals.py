"""Figures of a run that has ended are those that were shown while it went on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitprof.analysis.timing.summary import RunningTotals, Totals, summarise
from vitprof.config import RunConfig
from vitprof.recording.columns import TELEMETRY_COLUMNS


def test_of_a_summary_they_are_those_of_the_steps(make_steps: Any) -> None:
    rng = np.random.default_rng(2)
    steps = make_steps(rng.exponential(0.01, 50), rng.exponential(0.01, 50), h2d=0.001, warmup=5)
    telemetry = {name: np.empty(0) for name in TELEMETRY_COLUMNS}
    running = RunningTotals()
    running.add(steps)
    told = Totals.of(summarise(RunConfig(), steps, telemetry, (), {}, t_origin_s=99.0, t_end_s=110.0))
    assert told.steps == running.totals.steps
    assert told.samples_per_s == pytest.approx(running.totals.samples_per_s)
    for name in ("data_wait_s", "exposed_wait_s", "gap_s", "compute_s"):
        shown, live = (totals.share(getattr(totals, name)) for totals in (told, running.totals))
        assert shown == pytest.approx(live), name
