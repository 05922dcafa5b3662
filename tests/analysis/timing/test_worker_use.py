"""What workers use: the peak of shared memory, and growth that is real."""

import math

import numpy as np
import pytest

from tests.series import made_telemetry
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.worker_use import (
    WorkerMemory,
    growth,
    shared_memory_peak,
    worker_memory,
)

MB = 2.0**20
EVERY_S = 15.0


def sampled(
    private: np.ndarray, rss: np.ndarray | None = None, ages: np.ndarray | None = None
) -> Series:
    """Telemetry with memory in each third row, as it is read less often than the rest."""
    n = len(private)
    t_s = 100 + np.arange(3 * n) * EVERY_S / 3
    columns = {
        "worker_private_bytes": private,
        "worker_pss_bytes": 2 * private,
        "worker_rss_bytes": np.full(n, 500 * MB) if rss is None else rss,
        "workers_age_s": t_s[::3] - 95 if ages is None else ages,
        "memory_available_bytes": np.full(n, 4096 * MB),
    }
    sparse = {name: np.full(3 * n, np.nan) for name in columns}
    for name, values in columns.items():
        sparse[name][::3] = values
    return made_telemetry(t_s, **sparse)


def of(private: np.ndarray, **more: np.ndarray) -> WorkerMemory:
    found = worker_memory(sampled(private, **more))
    assert found is not None
    return found


def line(n: int, mb_each: float, noise_mb: float = 0.2, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(n)
    return MB * (20 + mb_each * np.arange(n) + noise_mb * noise)


def test_growth_has_its_rate_and_interval() -> None:
    found = of(line(40, 0.9))
    assert found.n_samples == 40
    assert found.span_s == 39 * EVERY_S
    assert found.bytes_per_s.value == pytest.approx(0.9 * MB / EVERY_S, rel=0.05)
    assert found.bytes_per_s.low < 0.9 * MB / EVERY_S < found.bytes_per_s.high
    assert found.grows
    assert found.is_copied, "all that a worker has stays the same"
    assert found.shared_bytes == pytest.approx(500 * MB - found.private_bytes)
    kept = of(line(40, 0.9), rss=line(40, 0.9) + 400 * MB)
    assert not kept.is_copied


@pytest.mark.parametrize(
    ("private", "why"),
    [
        (line(4, 20), "four samples"),
        (line(8, 20), "less than two minutes"),
        (line(40, 0), "flat"),
        (line(40, -1), "it falls"),
        (MB * 300 * (1 - np.exp(-np.arange(40) / 8)), "a cache that fills"),
        (MB * np.where(np.arange(40) > 20, 300.0, 20.0), "one step"),
    ],
)
def test_what_is_no_growth(private: np.ndarray, why: str) -> None:
    assert not of(private).grows, why


def test_workers_of_each_epoch_are_looked_at_apart() -> None:
    """Each begins with little: over all of them nothing grows, and within each it does."""
    ages = np.tile(np.arange(12) * EVERY_S, 3)
    private = np.tile(line(12, 10), 3)
    found = of(private, ages=ages)
    assert (found.n_samples, found.grows) == (12, True)
    assert found.bytes_per_s.value == pytest.approx(10 * MB / EVERY_S, rel=0.02)


def test_memory_that_wanders_is_no_growth() -> None:
    """Of 1,000 runs in which memory has no direction, fewer than 25 are said to grow: stationary noise of which
    neighbours are alike, and walks that go anywhere."""
    rng = np.random.default_rng(7)
    alarms = {"alike": 0, "walk": 0}
    for number in range(1000):
        n = int(rng.integers(9, 120))
        noise = rng.standard_normal(n)
        alike = np.zeros(n)
        for i in range(1, n):
            alike[i] = 0.8 * alike[i - 1] + noise[i]
        kind = "alike" if number % 2 else "walk"
        values = alike if kind == "alike" else np.cumsum(noise)
        alarms[kind] += of(MB * (2000 + 40 * values)).grows
    assert max(alarms.values()) < 25 / 2


def test_an_interval_of_growth_holds_the_truth() -> None:
    """Of 1,000 walks with a direction 93 of 100 or more."""
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(1000):
        n = int(rng.integers(9, 60))
        t_s = np.arange(n) * EVERY_S
        rate = growth(t_s, np.cumsum(3.0 + rng.standard_normal(n)))
        held += rate.low <= 3.0 / EVERY_S <= rate.high
    assert held > 930


def test_the_peak_of_shared_memory() -> None:
    used = np.array([10.0, 60.0, 30.0]) * MB
    telemetry = made_telemetry([1.0, 2.0, 3.0], shm_used_bytes=used, shm_free_bytes=64 * MB - used)
    peak = shared_memory_peak(telemetry)
    assert peak is not None
    assert (peak.used_bytes, peak.size_bytes) == (60 * MB, 64 * MB)
    assert peak.frac == pytest.approx(0.9375)
    assert shared_memory_peak(made_telemetry([1.0, 2.0])) is None
    assert shared_memory_peak({"t_s": np.zeros(0)}) is None


def test_what_was_not_sampled_is_not_known() -> None:
    assert worker_memory(made_telemetry([1.0, 2.0])) is None
    one = worker_memory(sampled(line(1, 0)))
    assert one is not None
    assert math.isnan(one.bytes_per_s.value)
    assert not one.grows
