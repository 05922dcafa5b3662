"""One step of a run: its times, and how its batch was made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Mask, Series
from vitprof.analysis.timing.gaps import CAUSE_COLUMN, Gaps
from vitprof.analysis.timing.step_times import end_s, got_s
from vitprof.recording.columns import TIMED_STAGES


@dataclass(frozen=True)
class OneStep:
    """The figures of a step, in seconds; NaN where not known. Moments are on the monotonic clock."""

    number: int
    """Number of the step in the run."""
    data_wait_s: float
    """How long the loop was blocked in next(loader) for its batch, or had it while the device still decoded it."""
    decode_wait_s: float
    """The device's part of it; NaN if no batch is decoded on the device."""
    exposed_wait_s: float
    """The part of the data wait in which the device idled."""
    h2d_s: float
    compute_s: float
    gap_s: float
    """How long the device idled before it."""
    step_s: float
    stages_s: Mapping[str, float]
    """Stage of loading -> seconds, for the stages that the loader times; hand-over is the last."""
    made_start_s: float
    """When the loader began to make the batch."""
    made_end_s: float
    """When the batch was made."""
    asked_s: float
    """When the loop asked for the batch."""
    got_s: float
    """When the loop had it."""
    worker: int | None
    """The worker process that made it; None if none did, or it is not known."""
    queue_depth: float
    """Batches that were ready when the loop asked."""

    @property
    def made_s(self) -> float:
        """Returns the seconds that making the batch took."""
        return self.made_end_s - self.made_start_s

    @property
    def lay_ready_s(self) -> float:
        """Returns how long the batch was ready before the loop asked for it; negative if the loop asked first."""
        return self.asked_s - self.made_end_s


def one_step(steps: Series, at: int) -> OneStep:
    """Returns the step at position `at` of the series."""

    def value(name: str) -> float:
        return float(steps[name][at])

    told = {stage: value(f"{stage}_s") for stage in (*TIMED_STAGES, "hand_over")}
    worker = value("worker")
    return OneStep(
        number=int(value("step")),
        data_wait_s=value("data_wait_s"),
        decode_wait_s=value("decode_wait_s"),
        exposed_wait_s=value("exposed_wait_s"),
        h2d_s=value("h2d_s"),
        compute_s=value("compute_s"),
        gap_s=value("gap_s"),
        step_s=value("step_s"),
        stages_s={name: seconds for name, seconds in told.items() if math.isfinite(seconds)},
        made_start_s=value("made_start_s"),
        made_end_s=value("made_end_s"),
        asked_s=value("t_start_s"),
        got_s=float(got_s(steps)[at]),
        worker=int(worker) if math.isfinite(worker) else None,
        queue_depth=value("queue_depth"),
    )


def typical_step(steps: Series, keep: Mask) -> int | None:
    """Returns the position of the step in `keep` whose batch took the median time to make; None if no time is known."""
    made = steps["made_end_s"] - steps["made_start_s"]
    at = np.flatnonzero(keep & np.isfinite(made))
    return int(at[np.argsort(made[at], kind="stable")[(len(at) - 1) // 2]]) if len(at) else None


def after_largest_gap(steps: Series, gaps: Gaps) -> int:
    """Returns the position in `steps` of the step after the largest of `gaps`, without evaluation. Needs a gap."""
    idle_ns = gaps.end_ns - gaps.start_ns - gaps.prepare_ns - gaps.causes_ns[:, CAUSE_COLUMN["evaluation"]]
    return int(np.searchsorted(steps["step"], gaps.step[int(np.argmax(idle_ns))]))


def step_at(steps: Series, moment_s: float, *, of_wait: bool = False) -> int:
    """Returns the position of the step that the device was in, or idled before, at `moment_s`.

    With `of_wait` it is that of the step whose batch the loop waited for.
    """
    ends = got_s(steps) if of_wait else end_s(steps)
    # a chart's moments are relative to the run's start: a microsecond is more than their rounding
    at = int(np.searchsorted(np.maximum.accumulate(np.nan_to_num(ends, nan=-np.inf)), moment_s - 1e-6))
    return min(at, len(ends) - 1)
