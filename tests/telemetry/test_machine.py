"""What the machine does now: one reading for everybody, at most once a second."""

import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.clock import Clock
from vitprof.telemetry import machine
from vitprof.telemetry.machine import MachineWatch
from vitprof.telemetry.nvml import GPU_FIELDS, GpuInfo

GPU = GpuInfo(0, "Stub", "GPU-1", 1e9, "1")


def test_readings_are_shared_and_rates_are_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, clock, disk = Mock(lost={}), Clock(100.0), SimpleNamespace(read=0.0)
    nvml.gpus.return_value = [GPU]
    nvml.read.return_value = dict.fromkeys(GPU_FIELDS, math.nan) | {"gpu_util_pct": 50.0}
    nvml.processes.return_value = {2**22 + 1: math.nan}  # no such process: Linux counts to 2**22
    monkeypatch.setattr(machine, "disk_io_bytes", lambda: (disk.read, 0.0))
    monkeypatch.setattr(machine, "Nvml", lambda: nvml)
    watch = MachineWatch(tmp_path / "not yet there", clock=clock)
    first = watch.read()
    assert (first.gpus[0].info, first.gpus[0].util_pct) == (GPU, 50.0)
    assert (first.gpus[0].processes[0].name, first.gpus[0].lost) == ("", "")
    assert math.isnan(first.cpu_pct)
    assert math.isnan(first.read_bytes_per_s)
    assert 0 < first.disk_bytes < first.disk_total_bytes
    assert 0 < first.memory_bytes < first.memory_total_bytes
    clock.now += 0.9
    assert watch.read() is first
    clock.now, disk.read = 102.0, 3e6
    assert (watch.read().read_bytes_per_s, nvml.read.call_count) == (1.5e6, 2)
    clock.now, disk.read = 200.0, 9e9
    assert math.isnan(watch.read().read_bytes_per_s), "a mean over minutes is no rate of now"
    watch.close()
    nvml.close.assert_called()
    watch.close()
