"""What a found pattern is told with, and the robust statistics that the rules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series, mean, median
from vitprof.analysis.timing.steady import first_of_epoch, steady_state, while_steady
from vitprof.config import RunConfig

STD_OF_MAD = 1.4826
"""Median absolute deviation of a normal distribution to its standard deviation (Iglewicz and Hoaglin 1993)."""


@dataclass(frozen=True)
class Signature:
    """A pattern in a run that points at one cause."""

    name: str
    """Machine word: worker-period, slow-worker, epoch-start, first-batch, garbage-collection, cold-to-warm,
    memory-growth, other-programs."""
    sentence: str
    """What was seen and what it comes from, for a person."""
    cost_s_per_step: float
    """Seconds that it costs for each step, spread over all steps it concerns; NaN where it costs something else."""
    cost_frac: float
    """The same as a share of the time of those steps; NaN where it costs something else."""
    evidence: Mapping[str, float]
    """The figures behind it, units in the names."""
    based_on: str
    """Where the rule comes from."""


@dataclass(frozen=True)
class Trace:
    """What the rules look at: a run's steps with what several rules ask of them."""

    steps: Series
    telemetry: Series
    config: RunConfig
    facts: Mapping[str, Any]
    """The run's facts and its environment in one mapping."""
    steady: Mask
    """(n,) as `analysis.timing.steady.steady_state` has it."""
    first: Mask
    """(n,) the first step of each epoch, the very first included."""

    @classmethod
    def of(cls, steps: Series, telemetry: Series, config: RunConfig, facts: Mapping[str, Any]) -> Trace:
        return cls(steps, telemetry, config, facts, steady_state(steps), first_of_epoch(steps))

    @property
    def n_steady(self) -> int:
        return int(self.steady.sum())

    @property
    def step_s(self) -> float:
        """Mean time of a steady step; NaN without one."""
        return mean(self.steps["step_s"][self.steady])

    @property
    def wait_s(self) -> Floats:
        """(n,) the wait that each step shows: exposed where there is a device to expose it, else all of it."""
        return self.steps["data_wait_s"] if self.config.loader_only else self.steps["exposed_wait_s"]

    def column(self, name: str) -> Floats:
        """(n,) a column of the steps; NaN where an older run does not have it."""
        return self.steps.get(name, np.full(len(self.steps["step"]), np.nan))

    def while_training(self, name: str) -> tuple[Floats, Floats]:
        """(m,) times and values of a telemetry column between the first and the last steady step, where known."""
        t, values = self.telemetry["t_s"], self.telemetry[name]
        inside = while_steady(self.steps, t) & np.isfinite(values)
        return t[inside], values[inside]


def spread(values: Floats) -> float:
    """Robust standard deviation: the median absolute deviation, scaled for normal noise. NaN where nothing is known."""
    return STD_OF_MAD * median(np.abs(values - median(values)))
