"""Figures of a running job: sums over its steady steps, updated as steps arrive."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from vitprof.analysis.arrays import Mask, Series
from vitprof.analysis.timing.steady import past_warmup
from vitprof.recording.columns import RunSummary


@dataclass(frozen=True)
class Totals:
    """Sums over the steady steps so far, and figures that follow from them."""

    steps: int = 0
    samples: float = 0.0
    step_s: float = 0.0
    data_wait_s: float = 0.0
    exposed_wait_s: float = 0.0
    gap_s: float = 0.0
    compute_s: float = 0.0

    @classmethod
    def of(cls, summary: RunSummary) -> Totals:
        """Returns sums for a run that has ended, scaled to one second of its steady time.

        Its shares and throughput are those of the summary, and none of its steps has to be read.
        """
        return cls(
            steps=summary.n_steady_steps,
            samples=summary.samples_per_s,
            step_s=1.0,
            data_wait_s=summary.data_wait_frac,
            exposed_wait_s=summary.exposed_wait_frac,
            gap_s=summary.device_idle_frac,
            compute_s=summary.compute_frac,
        )

    def share(self, seconds: float) -> float:
        """Returns `seconds` as a share of the steady time; NaN before there is any."""
        return seconds / self.step_s if self.step_s > 0 else math.nan

    def plus(self, new: Series, counted: Mask) -> Totals:
        """Returns these sums with the rows of `new` in `counted` added."""
        sums = {f.name: getattr(self, f.name) + float(new[f.name][counted].sum()) for f in SUMMED}
        return Totals(steps=self.steps + int(counted.sum()), **sums)

    @property
    def samples_per_s(self) -> float:
        """Returns the throughput; NaN before there is any steady time."""
        return self.samples / self.step_s if self.step_s > 0 else math.nan


SUMMED = [f for f in dataclasses.fields(Totals) if f.name != "steps"]
"""Fields of `Totals` that are sums of the column of the same name."""


class RunningTotals:
    """Totals of a run whose steps arrive in batches."""

    def __init__(self) -> None:
        self._last_epoch = -math.inf
        self._inside = Totals()
        self._begins = Totals()
        """Sums over the steps past the warm-up: those inside an epoch (`_inside`), and those that begin one."""

    @property
    def totals(self) -> Totals:
        """Returns the sums over the steady steps so far, those that `steady_state` chooses."""
        return self._inside if self._inside.steps else self._begins

    def add(self, new: Series) -> None:
        """Adds the steps that come next; needs at least one."""
        inside, begins = past_warmup(new, epoch_before=self._last_epoch)
        self._last_epoch = float(new["epoch"][-1])
        self._inside, self._begins = self._inside.plus(new, inside), self._begins.plus(new, begins)
