"""A pattern found in a run, the run as the rules see it, and the robust statistics that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series, mean, median
from vitprof.analysis.timing.steady import first_of_epoch, steady_state, while_steady
from vitprof.config import RunConfig

STD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation (Iglewicz and Hoaglin 1993)."""


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


def spread(values: Floats) -> float:
    """Returns a robust standard deviation: the median absolute deviation, scaled for normal noise. NaN if nothing is
    known.
    """
    return STD_OF_MAD * median(np.abs(values - median(values)))
