"""The energy that the GPUs of a job have used, from their counters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """What the GPUs of a job have used; NaN where a counter of one of them cannot be read."""

    joules: float
    """Energy since the first reading of each GPU, summed."""
    n_gpus: float
    """GPUs in that sum."""


class EnergyMeter:
    """Adds up the counters of the GPUs of a job, from one reading to the next.

    NVML counts from the moment when the driver was loaded. Here each GPU counts from its first
    reading, so that a GPU that joins later adds nothing that it used before.
    """

    def __init__(self) -> None:
        self._first_j: dict[str, float] = {}
        self._last_j: dict[str, float] = {}

    def total(self, readings: Mapping[str, float]) -> JobEnergy:
        """Takes the counters as they are now, in joules by the GPU's UUID, and returns the sum.

        A counter that runs backwards has begun anew, as the driver was loaded again. What its GPU
        used is then not known any more.
        """
        for gpu, joules in readings.items():
            if math.isnan(joules):
                continue
            self._first_j.setdefault(gpu, joules)
            if joules < self._last_j.get(gpu, joules):
                self._first_j[gpu] = math.nan
            self._last_j[gpu] = joules
        used_j = [joules - self._first_j.get(gpu, math.nan) for gpu, joules in readings.items()]
        total_j = math.fsum(used_j)
        if not used_j or math.isnan(total_j):
            return JobEnergy(math.nan, math.nan)
        return JobEnergy(total_j, float(len(used_j)))
