"""What idle time costs, over many runs: which jobs are starved now, and device-hours by machine.

The hours are also by user or project. Idle means that a device had nothing to do because of a data
wait (the exposed wait). In jobs of several ranks it is the longest of theirs in each step where
that is known, else that of rank 0.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.thresholds import INPUT_BOUND_FRAC, UNCLEAR_LOADERS_FRAC

BUCKET_S = 30.0
"""Length (s) of the parts of a live run of which each has a share."""
NOW = 4
"""The last such parts, which are now: two minutes."""
NAMES = ("step", "t_start_s", "step_s", "exposed_wait_s")
"""The columns that are needed."""


@dataclass
class LiveIdle:
    """Sums how much a run that goes on is idle for data, over its time; steps are added as they
    come.
    """

    last: int = -1
    """Number of the last step."""
    steps: int = 0
    known: int = 0
    """Steps whose exposed wait is known."""
    idle_s: float = 0.0
    began_s: float = math.inf
    """When the first step began, on the run's clock."""
    until_s: float = -math.inf
    """When the last step ended."""
    parts: dict[int, list[float]] = field(default_factory=dict)
    """Part of the run, by its number -> seconds idle, seconds in all."""

    def add(self, new: Series) -> None:
        """Adds the steps that follow (`NAMES`, (n,) each)."""
        if not len(new["step"]):
            return
        wait = new["exposed_wait_s"]
        of_part = np.floor(new["t_start_s"] / BUCKET_S).astype(int)
        whole = np.maximum(new["step_s"], np.nan_to_num(wait))
        for number in np.unique(of_part):
            inside = of_part == number
            part = self.parts.setdefault(int(number), [0.0, 0.0])
            part[0] += float(np.nansum(wait[inside]))
            part[1] += float(np.nansum(whole[inside]))
        self.began_s = min(self.began_s, float(new["t_start_s"][0]))
        self.until_s = float(new["t_start_s"][-1] + np.nan_to_num(whole[-1]))
        self.last = int(new["step"][-1])
        self.steps += len(wait)
        self.known += int(np.isfinite(wait).sum())
        self.idle_s += float(np.nansum(wait))

    @property
    def is_known(self) -> bool:
        """Returns whether the waits of nearly all steps are known."""
        return self.steps > 0 and self.steps - self.known <= UNCLEAR_LOADERS_FRAC * self.steps

    @property
    def share(self) -> float:
        """Returns the share (0 to 1) of the last minutes that was idle; NaN where that is not
        known.
        """
        if not self.is_known:
            return math.nan
        newest = max(self.parts, default=0)
        return self._share([n for n in self.parts if n > newest - NOW])

    def starved_s(self) -> float:
        """Returns for how long (s) it has been starved without a pause; 0 where it is not.

        A part is starved from `INPUT_BOUND_FRAC` on. A part without a step goes on as it was
        before. Of the first part and of the last one only the time that was trained counts.
        """
        # also where the share is not known
        if not self.share >= INPUT_BOUND_FRAC:
            return 0.0
        numbers = sorted(self.parts, reverse=True)
        first = numbers[0]
        for number in numbers[NOW:]:
            if self._share([number]) < INPUT_BOUND_FRAC:
                break
            first = number
        first = min(first, numbers[min(NOW, len(numbers)) - 1])
        return self.until_s - max(first * BUCKET_S, self.began_s)

    def _share(self, numbers: Sequence[int]) -> float:
        idle = sum(self.parts[number][0] for number in numbers)
        whole = sum(self.parts[number][1] for number in numbers)
        return idle / whole if whole > 0 else math.nan


@dataclass(frozen=True)
class Spent:
    """The device time that a run spent."""

    machine: str
    user: str
    project: str
    devices: int
    """Its ranks: each has a device."""
    trained_s: float
    """Time that it trained."""
    idle_frac: float
    """The share of that in which its devices were idle for data; NaN where that is not known."""

    @property
    def hours(self) -> float:
        """Returns the device-hours that it trained."""
        return self.devices * self.trained_s / 3600


@dataclass(frozen=True)
class Cost:
    """The device time that the runs of a machine, a user or a project spent."""

    name: str
    runs: int
    device_hours: float
    """Hours that their devices trained."""
    idle_hours: float
    """The part of them in which the devices were idle for data."""
    unknown_hours: float
    """Hours of which that is not known."""

    @property
    def idle_frac(self) -> float:
        known = self.device_hours - self.unknown_hours
        return self.idle_hours / known if known > 0 else math.nan


def costs(spent: Iterable[Spent], by: Callable[[Spent], str]) -> list[Cost]:
    """Returns what was spent by each name that `by` gives; who idled longest first."""
    groups: dict[str, list[Spent]] = {}
    for each in spent:
        if math.isfinite(each.trained_s):
            groups.setdefault(by(each), []).append(each)
    by_name = []
    for name, runs in groups.items():
        idle_hours = sum(run.hours * run.idle_frac for run in runs if math.isfinite(run.idle_frac))
        unknown_hours = sum(run.hours for run in runs if not math.isfinite(run.idle_frac))
        hours = sum(run.hours for run in runs)
        by_name.append(Cost(name, len(runs), hours, idle_hours, unknown_hours))
    return sorted(by_name, key=lambda cost: (-cost.idle_hours, cost.name))
