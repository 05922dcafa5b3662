"""A run's series in memory, growing with the run: each refresh reads only the rows that are new."""

from __future__ import annotations

import dataclasses
import math
import threading
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Mask, Series
from vitprof.analysis.timing.steady import past_warmup
from vitprof.records import TELEMETRY_COLUMNS
from vitprof.store import RunStore

STEP_NAMES = (
    "step",
    "epoch",
    "t_start_s",
    "data_wait_s",
    "h2d_s",
    "compute_start_s",
    "compute_s",
    "gap_s",
    "exposed_wait_s",
    "step_s",
    "samples",
    "loss",
    "warmup",
    "device_prepare_s",
    "launch_idle_s",
)


class Growing:
    """Columns that grow at the end; appending costs what is appended, not what is there."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._room = np.empty((len(names), 1024))
        self.n = 0

    def append(self, new: Series) -> None:
        added = len(new[self._names[0]])
        if self.n + added > self._room.shape[1]:
            room = np.empty((len(self._names), 2 * (self.n + added)))
            room[:, : self.n] = self._room[:, : self.n]
            self._room = room
        for row, name in enumerate(self._names):
            self._room[row, self.n : self.n + added] = new[name]
        self.n += added

    def view(self) -> Series:
        """Returns the columns as they are now; later appends do not change what was handed out."""
        return {name: self._room[row, : self.n] for row, name in enumerate(self._names)}


@dataclass(frozen=True)
class Totals:
    """Sums over the steady steps so far, and what follows from them."""

    steps: int = 0
    samples: float = 0.0
    step_s: float = 0.0
    data_wait_s: float = 0.0
    exposed_wait_s: float = 0.0
    gap_s: float = 0.0
    compute_s: float = 0.0

    def share(self, seconds: float) -> float:
        """`seconds` as a share of the steady time; NaN before there is any."""
        return seconds / self.step_s if self.step_s > 0 else math.nan

    def plus(self, new: Series, counted: Mask) -> Totals:
        """Returns these sums with the rows of `new` in `counted` added."""
        sums = {f.name: getattr(self, f.name) + float(new[f.name][counted].sum()) for f in SUMMED}
        return Totals(steps=self.steps + int(counted.sum()), **sums)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.step_s if self.step_s > 0 else math.nan


SUMMED = [f for f in dataclasses.fields(Totals) if f.name != "steps"]
"""Fields of `Totals` that are sums of the column of the same name."""


class RunSeries:
    """Steps, telemetry and running totals of one run. Any thread may refresh; each row is read once."""

    def __init__(self, store: RunStore, run_id: int) -> None:
        self._store = store
        self._run_id = run_id
        self._lock = threading.Lock()
        self._steps = Growing(STEP_NAMES)
        self._telemetry = Growing(TELEMETRY_COLUMNS)
        self._last_step = -1
        self._last_sample = -1
        self._last_epoch = -math.inf
        self._inside = Totals()
        self._begins = Totals()
        """Sums over the steps past the warm-up that lie inside an epoch, and over those that begin one."""

    def refresh(self) -> None:
        """Reads what the store has gained."""
        with self._lock:
            new = self._store.steps(self._run_id, after=self._last_step, names=STEP_NAMES)
            if len(new["step"]):
                self._last_step = int(new["step"][-1])
                self._add_to_totals(new)
                self._steps.append(new)
            samples = self._store.telemetry(self._run_id, after=self._last_sample)
            if len(samples["seq"]):
                self._last_sample = int(samples["seq"][-1])
                self._telemetry.append(samples)

    @property
    def totals(self) -> Totals:
        """Sums over the steady steps so far, those that `steady_state` chooses."""
        return self._inside if self._inside.steps else self._begins

    def _add_to_totals(self, new: Series) -> None:
        inside, begins = past_warmup(new, epoch_before=self._last_epoch)
        self._last_epoch = float(new["epoch"][-1])
        self._inside, self._begins = self._inside.plus(new, inside), self._begins.plus(new, begins)

    def steps(self) -> Series:
        """Returns the columns `STEP_NAMES`, each (n,) float64."""
        with self._lock:
            return self._steps.view()

    def telemetry(self) -> Series:
        """Returns the columns `TELEMETRY_COLUMNS`, each (n,) float64."""
        with self._lock:
            return self._telemetry.view()
