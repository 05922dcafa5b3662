"""Which steps the figures of a run rest on, when each of a step's events happened, and a run as rules see it.

Moments are on the monotonic clock; all functions take columns and return (n,) arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series, mean
from vitprof.config import RunConfig


def decode_wait_s(steps: Series) -> Floats:
    """Returns how long the device took to decode the batch after the loop had it; 0 where that is not known."""
    return _or_zero(steps, "decode_wait_s")


def prepare_s(steps: Series) -> Floats:
    """Returns how long the device prepared the batch after the previous step; 0 where that is not known."""
    return _or_zero(steps, "device_prepare_s")


def got_s(steps: Series) -> Floats:
    """Returns when the loop had the batch."""
    return np.asarray(steps["t_start_s"] + steps["data_wait_s"] - decode_wait_s(steps))


def launched_s(steps: Series) -> Floats:
    """Returns when the step was launched; NaN where `host_s` is not known."""
    return np.asarray(got_s(steps) + steps["host_s"])


def begin_s(steps: Series) -> Floats:
    """Returns where the gap before the step begins: at the end of the previous step, or where the recorder resumed."""
    return np.asarray(steps["compute_start_s"] - steps["gap_s"] - prepare_s(steps))


def end_s(steps: Series) -> Floats:
    """Returns when the device finished the step."""
    return np.asarray(steps["compute_start_s"] + steps["compute_s"] - prepare_s(steps))


def _or_zero(steps: Series, name: str) -> Floats:
    """Returns a column with 0 for what is not known; all 0 where an older run does not have it."""
    values = steps.get(name)
    return np.zeros(len(steps["t_start_s"])) if values is None else np.nan_to_num(values)


def first_of_epoch(steps: Series, *, epoch_before: float = -math.inf) -> Mask:
    """Returns which steps begin an epoch, the very first of the run included. (n,) bool.

    `epoch_before` is the epoch of the previous step, if these steps are not the first of the run.
    """
    return np.asarray(np.diff(steps["epoch"], prepend=epoch_before) > 0)


def past_warmup(steps: Series, *, epoch_before: float = -math.inf) -> tuple[Mask, Mask]:
    """Returns which steps after the warm-up are inside an epoch, and which of them begin one. (n,) bool each."""
    warm = steps["warmup"] == 0
    first = first_of_epoch(steps, epoch_before=epoch_before)
    return np.asarray(warm & ~first), np.asarray(warm & first)


def steady_state(steps: Series) -> Mask:
    """Returns the steps for steady-state figures: neither warm-up nor the first of an epoch. (n,) bool.

    If every step past the warm-up is the first of its epoch (a batch as large as the set), only the warm-up is left
    out. `totals.RunningTotals` adds up both masks of `past_warmup` as steps arrive, and chooses in the same way.
    """
    inside, begins = past_warmup(steps)
    return inside if inside.any() else begins


def wall_clock_weights(steps: Series) -> Floats:
    """Returns how often each step counts in the wall clock of training: steady steps once, the rest of the warm-up
    never. (n,) float.

    The first step of each epoch but the run's first counts as well, a little more than once: the first epoch began like
    the others, but how long that took cannot be told from start-up.
    """
    steady = steady_state(steps)
    starts = (steps["warmup"] == 0) & first_of_epoch(steps) & ~steady
    starts[:1] = False
    n = int(starts.sum())
    return np.asarray(np.where(starts, (n + 1) / max(n, 1), steady.astype(float)))


def while_steady(steps: Series, t_s: Floats) -> Mask:
    """Returns which moments `t_s` are between the starts of the first and the last steady step. (m,) bool.

    They may be those of telemetry. `steps` needs t_start_s, epoch and warmup.
    """
    start = steps["t_start_s"][steady_state(steps)]
    if not len(start):
        return np.zeros(len(t_s), dtype=bool)
    return np.asarray((t_s >= start[0]) & (t_s <= start[-1]))


@dataclass(frozen=True)
class Trace:
    """A run as the rules see it: its columns, and the masks and figures that several rules need."""

    steps: Series
    telemetry: Series
    config: RunConfig
    facts: Mapping[str, Any]
    """The run's facts and its environment in one mapping."""
    steady: Mask
    """(n,) steady steps, as `analysis.timing.steady.steady_state` finds them."""
    first: Mask
    """(n,) the first step of each epoch, the very first included."""

    @classmethod
    def of(cls, steps: Series, telemetry: Series, config: RunConfig, facts: Mapping[str, Any]) -> Trace:
        """Returns the trace of a run; `facts` holds its facts and its environment."""
        return cls(steps, telemetry, config, facts, steady_state(steps), first_of_epoch(steps))

    @cached_property
    def n_steady(self) -> int:
        """Returns the number of steady steps."""
        return int(self.steady.sum())

    @cached_property
    def step_s(self) -> float:
        """Returns the mean seconds of a steady step; NaN without one."""
        return mean(self.steps["step_s"][self.steady])

    @property
    def wait_s(self) -> Floats:
        """Returns (n,) the wait that counts in each step: the exposed wait, or the whole data wait of a loader-only
        run.
        """
        return self.steps["data_wait_s"] if self.config.loader_only else self.steps["exposed_wait_s"]

    def column(self, name: str) -> Floats:
        """Returns (n,) a column of the steps; all NaN where an older run does not have it."""
        return self.steps.get(name, np.full(len(self.steps["step"]), np.nan))

    def while_training(self, name: str) -> tuple[Floats, Floats]:
        """Returns (m,) times and finite values of a telemetry column between the first and the last steady step."""
        t, values = self.telemetry["t_s"], self.telemetry[name]
        inside = while_steady(self.steps, t) & np.isfinite(values)
        return t[inside], values[inside]
