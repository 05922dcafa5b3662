"""What workers use: the peak of shared memory."""

import numpy as np
import pytest

from tests.series import made_telemetry
from vitprof.analysis.timing.worker_use import shared_memory_peak

MB = 2.0**20


def test_the_peak_of_shared_memory() -> None:
    used = np.array([10.0, 60.0, 30.0]) * MB
    telemetry = made_telemetry([1.0, 2.0, 3.0], shm_used_bytes=used, shm_free_bytes=64 * MB - used)
    peak = shared_memory_peak(telemetry)
    assert peak is not None
    assert (peak.used_bytes, peak.size_bytes) == (60 * MB, 64 * MB)
    assert peak.frac == pytest.approx(0.9375)
    assert shared_memory_peak(made_telemetry([1.0, 2.0])) is None
    assert shared_memory_peak({"t_s": np.zeros(0)}) is None
