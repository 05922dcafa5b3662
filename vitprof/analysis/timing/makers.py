"""The work of each worker process of a loader."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Mask, Series


@dataclass(frozen=True)
class WorkerTime:
    """The batches of one worker process, over the chosen steps."""

    worker: int
    """Its number, from 0."""
    n_batches: int
    """Batches that it made."""
    made_s: float
    """Median seconds to make a batch."""
    made_p95_s: float
    """Seconds that 95% of its batches take at most."""
    busy_frac: float
    """Share of the time that it was making batches, 0 to 1. Near 1 for all workers: use more of them, or give them less
    work."""


def by_worker(steps: Series, keep: Mask) -> tuple[WorkerTime, ...]:
    """Returns one entry for each worker process that made a batch of the steps in `keep`, (n,) bool; or none."""
    made = steps["made_end_s"] - steps["made_start_s"]
    told = keep & np.isfinite(steps["worker"]) & np.isfinite(made)
    span_s = float(np.nansum(steps["step_s"][told]))
    found = []
    for worker in np.unique(steps["worker"][told]):
        took = made[told & (steps["worker"] == worker)]
        busy = min(float(took.sum()) / span_s, 1.0) if span_s > 0 else math.nan
        found.append(WorkerTime(int(worker), len(took), float(np.median(took)), float(np.percentile(took, 95)), busy))
    return tuple(found)
