"""What the workers of a watched script use over a run: shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Series, column

COLUMNS = ("t_s", "shm_used_bytes", "shm_free_bytes")
"""The columns of telemetry that this needs."""


@dataclass(frozen=True, slots=True)
class SharedMemoryPeak:
    """The moment at which the most of /dev/shm was used, by all programs."""

    used_bytes: float
    size_bytes: float

    @property
    def frac(self) -> float:
        return self.used_bytes / self.size_bytes


def shared_memory_peak(telemetry: Series) -> SharedMemoryPeak | None:
    """Returns it; None where /dev/shm is not there, or has no limit."""
    used = column(telemetry, "shm_used_bytes")
    size = used + column(telemetry, "shm_free_bytes")
    known = np.flatnonzero(np.isfinite(size) & (size > 0))
    if not len(known):
        return None
    at = known[np.argmax(used[known] / size[known])]
    return SharedMemoryPeak(float(used[at]), float(size[at]))
