"""From the device's clock to the host's: rounding and drift stay below 10 us however long a run is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.measure.devices.cuda import RE_ANCHOR_S, CudaDevice, HostClock

TOLERANCE_S = 10e-6


class Event:
    """What a CUDA event tells: the time since another one, as float32 milliseconds."""

    def __init__(self, device_s: float, recorded_s: float) -> None:
        self.device_s, self.recorded_s = device_s, recorded_s

    def elapsed_time(self, later: Event) -> float:
        return float(np.float32((later.device_s - self.device_s) * 1e3))


class Host:
    """The host's clock, which a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def cuda_device(host: Host) -> CudaDevice:
    """The real mapping of marks to times, without a GPU; its first anchor is at 0 on both clocks."""
    device = object.__new__(CudaDevice)
    device._clock, device._host = host, HostClock()
    device._anchor, device._anchor_s = Event(0.0, 0.0), 0.0
    device._host.set(0.0, 0.0)
    return device


@pytest.mark.parametrize("drift", [0.0, 30e-6, -30e-6])
@pytest.mark.parametrize("busy", [False, True])
def test_hours_cost_less_than_ten_microseconds(drift: float, busy: bool) -> None:
    """Three hours of a step every 0.7 s. A busy device runs an event 0.5 s after it was recorded; then only the moment
    when the host sees it tells of a clock that is ahead, and one that is behind cannot be told from work."""
    host, worst = Host(), 0.0
    device = cuda_device(host)
    for step in range(1, 15_000):
        recorded = step * 0.7
        happened = recorded + (0.5 if busy else 2e-6)
        host.now = happened + 3e-6
        at = device.seconds(Event(happened * (1 + drift), recorded))  # type: ignore[arg-type]
        worst = max(worst, abs(at - happened))
        assert recorded <= at <= host.now
    if busy and drift < 0:
        assert worst > TOLERANCE_S  # as the docstring says: no bound speaks, and nothing idles
    else:
        assert worst < TOLERANCE_S


def test_a_duration_keeps_its_resolution() -> None:
    host = Host()
    device = cuda_device(host)
    for second in range(1, 7200):
        start = second + 0.25
        host.now = start + 0.5
        times = [device.seconds(Event(start + offset, start)) for offset in (0.0, 0.4e-3)]  # type: ignore[arg-type]
        assert times[1] - times[0] == pytest.approx(0.4e-3, abs=1e-6)


def test_the_anchor_moves_on() -> None:
    host = Host()
    device = cuda_device(host)
    first = device._anchor
    host.now = 10.0
    mark = Event(RE_ANCHOR_S * 1.5, 1.0)
    device.seconds(mark)  # type: ignore[arg-type]
    assert device._anchor is mark
    assert device._anchor is not first


@given(
    offset=st.floats(-1e6, 1e6),
    moments=st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=20),
)
def test_no_time_breaks_its_bounds(offset: float, moments: list[tuple[float, float, float]]) -> None:
    clock = HostClock()
    clock.set(0.0, offset)
    for device_s, recorded, later in moments:
        assert recorded <= clock.to_host(device_s, recorded, recorded + later) <= recorded + later
