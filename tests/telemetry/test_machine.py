"""The figures of the whole machine: real ones, and made up ones where a real one is too rare."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from vitprof.telemetry import processes
from vitprof.telemetry.processes import MachineCpu, Rate, disk_io_bytes


def test_rate() -> None:
    rate = Rate()
    assert math.isnan(rate(1.0, 100.0))
    assert rate(3.0, 150.0) == 25.0
    assert rate(4.0, 150.0) == 0.0
    for now, value in [(4.0, 200.0), (3.0, 300.0), (5.0, 10.0), (6.0, math.nan), (7.0, 50.0)]:
        assert math.isnan(rate(now, value))  # clock stands, clock back, counter back, not readable, nothing before
    assert rate(8.0, 60.0) == 10.0


def machine(**seconds: float) -> Any:
    """What psutil.cpu_times returns, as far as it matters: its sum is the time of all fields."""
    names = ("user", "idle", "iowait", "guest", "guest_nice")

    class Times(SimpleNamespace):
        def __iter__(self) -> Iterator[float]:
            return iter([getattr(self, name) for name in names])

    return Times(**(dict.fromkeys(names, 0.0) | seconds))


def test_cpu_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(
        [
            machine(user=10, idle=100, iowait=5),
            machine(user=13, idle=105, iowait=7, guest=2),  # guests are in user already; waiting for disks is idle
            machine(user=13, idle=105, iowait=7, guest=2),  # no tick since
            machine(user=17, idle=105, iowait=7, guest=2),
            machine(user=17, idle=107, iowait=6, guest=2),  # iowait may fall, says proc(5)
        ]
    )

    def no_proc() -> None:
        raise FileNotFoundError

    monkeypatch.setattr(processes, "machine_ticks", no_proc)  # on other systems
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(readings))
    cpu = MachineCpu()
    assert math.isnan(cpu())
    assert cpu() == pytest.approx(30.0)
    assert math.isnan(cpu())
    assert cpu() == 100.0
    assert cpu() == 0.0


def test_cpu_of_this_machine() -> None:
    cpu, pause, end = MachineCpu(), threading.Event(), time.monotonic() + 20
    assert math.isnan(cpu())
    while math.isnan(percent := cpu()):
        assert time.monotonic() < end, "the kernel counts no CPU time"
        pause.wait(0.01)
    assert 0 <= percent <= 100


def test_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    here = psutil.disk_io_counters()
    assert disk_io_bytes()[0] == pytest.approx(here.read_bytes if here else math.nan, rel=0.1, nan_ok=True)

    def no_proc() -> None:
        raise FileNotFoundError

    monkeypatch.setattr(processes, "disk_bytes", no_proc)  # on other systems
    assert disk_io_bytes()[0] == pytest.approx(here.read_bytes if here else math.nan, rel=0.1, nan_ok=True)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: None)
    assert math.isnan(disk_io_bytes()[0])
    for error in (NotImplementedError("no usable /proc/diskstats"), PermissionError(), RuntimeError()):

        def fail(error: Exception = error, **_: object) -> None:
            raise error

        monkeypatch.setattr(psutil, "disk_io_counters", fail)
        assert math.isnan(disk_io_bytes()[0])
