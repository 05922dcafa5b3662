"""What the workers of a watched script use over a run: shared memory, memory of their own, threads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis import students_t
from vitprof.analysis.arrays import Floats, Interval, Series, column

COLUMNS = (
    *("t_s", "shm_used_bytes", "shm_free_bytes", "worker_threads", "worker_cpu_pct"),
    *("worker_private_bytes", "worker_pss_bytes", "worker_rss_bytes", "workers_age_s"),
    "memory_available_bytes",
)
"""The columns of telemetry that this needs."""
LEAST_SAMPLES = 5
"""Fewer samples of memory show no growth."""
LEAST_SPAN_S = 120.0
"""Time (s) of growth below which none is told. Workers start, import and fill their caches in seconds to a
minute."""
SAME_LIFE_S = 1.0
"""Workers are the same as in the sample before where they were seen first at the same time, up to this."""
LATE_FRAC = 0.5
"""Of the rate of all of the growth, the least that its second half must have. What fills a cache with time
constant T has less than that from 2.2 T on."""
MOST_ALIKE = 0.9
"""Bound of the correlation of neighbours, which widens an interval 4.4 times."""


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


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory of a worker, by mean over those that ran at once, and how it grows."""

    private_bytes: float
    """What it shares with nobody, in the last sample."""
    pss_bytes: float
    """The same with its part of what it shares."""
    shared_bytes: float
    """What it shares, whole."""
    available_bytes: float
    """What programs could still use then."""
    n_samples: int
    span_s: float
    """From the first to the last of these samples."""
    grown_bytes: float
    """How much its private memory grew meanwhile."""
    bytes_per_s: Interval
    """The rate of that; the ends are NaN where the samples are too few."""
    late_bytes_per_s: float
    """That of the second half of the samples."""
    rss_bytes_per_s: float
    """The growth of all its memory, what it shares included."""

    @property
    def grows(self) -> bool:
        """Returns whether the growth is real, and goes on."""
        rate = self.bytes_per_s
        is_seen = self.n_samples >= LEAST_SAMPLES and self.span_s >= LEAST_SPAN_S
        # A figure as rough as that is none to forecast by.
        is_sure = rate.low > 0 and rate.low >= rate.value / 2
        return is_seen and is_sure and self.late_bytes_per_s >= LATE_FRAC * rate.value

    @property
    def is_copied(self) -> bool:
        """Returns whether it grows by pages that were shared before: all its memory grows by less than half of
        that. A page that is copied on its first write has been the worker's since the fork."""
        return self.rss_bytes_per_s < self.bytes_per_s.value / 2


def worker_memory(telemetry: Series) -> WorkerMemory | None:
    """Returns the memory of the workers that were seen longest; None where it was not sampled."""
    private = column(telemetry, "worker_private_bytes")
    sampled = np.flatnonzero(np.isfinite(private))
    if not len(sampled):
        return None
    t_s = telemetry["t_s"][sampled]
    first_seen_s = t_s - column(telemetry, "workers_age_s")[sampled]
    begins = np.flatnonzero(np.abs(np.diff(first_seen_s)) > SAME_LIFE_S) + 1
    life = max(np.split(sampled, begins), key=len)
    t_s = telemetry["t_s"][life]
    private = private[life]
    rss = column(telemetry, "worker_rss_bytes")[life]
    middle = len(life) // 2
    return WorkerMemory(
        private_bytes=float(private[-1]),
        pss_bytes=float(column(telemetry, "worker_pss_bytes")[life[-1]]),
        shared_bytes=float(rss[-1] - private[-1]),
        available_bytes=float(column(telemetry, "memory_available_bytes")[life[-1]]),
        n_samples=len(life),
        span_s=float(t_s[-1] - t_s[0]),
        grown_bytes=float(private[-1] - private[0]),
        bytes_per_s=growth(t_s, private),
        late_bytes_per_s=growth(t_s[middle:], private[middle:]).value,
        rss_bytes_per_s=growth(t_s, rss).value,
    )


def growth(t_s: Floats, values: Floats) -> Interval:
    """Returns by how much values grow in a second, with the 95% interval of that.

    It rests on what comes from one sample to the next. A memory that wanders without a direction (a random
    walk) has such changes around 0 however far it gets, while a line through its values always rises or
    falls.
    """
    took_s = np.diff(t_s)
    total_s = float(took_s.sum())
    if not total_s > 0:
        return Interval(math.nan, math.nan, math.nan)
    rate = float(values[-1] - values[0]) / total_s
    off = np.diff(values) - rate * took_s
    n = len(off)
    if n < LEAST_SAMPLES - 1:
        return Interval(rate, math.nan, math.nan)
    squares = float((off**2).sum())
    alike = float((off[1:] * off[:-1]).sum()) / squares if squares > 0 else 0.0
    alike = min(max(alike, 0.0), MOST_ALIKE)
    variance = n * squares / (n - 1) * (1 + alike) / (1 - alike)
    reach = students_t.quantile(students_t.TWO_SIDED_95, n - 1) * math.sqrt(variance) / total_s
    return Interval(rate, rate - reach, rate + reach)


def worker_cores(facts: Mapping[str, Any]) -> float:
    """Returns the cores that the job has; NaN where that is not known."""
    return float(facts.get("job_cpu_count") or facts.get("cpu_count") or math.nan)
