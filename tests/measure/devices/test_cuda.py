"""From the device's clock to the host's: rounding and drift stay below 10 us however long a run is."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitprof.config.gpu_findings import Finding
from vitprof.measure.devices import Pinning
from vitprof.measure.devices.cuda import EACH_LOSS_UNTIL, SCALARS_UNDER_WAY, CudaDevice
from vitprof.measure.devices.host_clock import HostClock

TOLERANCE_S = 10e-6


class Event:
    """What a CUDA event tells: the time since another one, as float32 milliseconds."""

    def __init__(self, device_s: float, recorded_s: float) -> None:
        self.device_s, self.recorded_s, self.by_s = device_s, recorded_s, float("inf")
        self.event = self
        """A mark is one with its event here."""
        self.is_released = False

    def elapsed_time(self, later: Event) -> float:
        assert later.device_s >= self.device_s  # nobody says that a driver counts backwards
        return float(np.float32((later.device_s - self.device_s) * 1e3))


class Host:
    """The host's clock, which a test sets, and what the device has to do."""

    now = drift = 0.0
    free_s = 0.0
    """When the device will be done with its work."""

    def __call__(self) -> float:
        return self.now

    def query(self) -> bool:
        return self.now >= self.free_s


class Marked(Event):
    """An event that a device records when it is done with its work."""

    def __init__(self, host: Host) -> None:
        super().__init__(0.0, 0.0)
        self.host = host

    def record(self, host: Host) -> None:
        host.now += 1e-6
        self.device_s = max(host.now, host.free_s) * (1 + host.drift)


def cuda_device(host: Host) -> CudaDevice:
    """The real mapping of marks to times, without a GPU; its first anchor is at 0 on both clocks."""
    device = object.__new__(CudaDevice)
    device._clock, device._host, device._work, device._checked_s = (
        host,
        HostClock(0.0),
        host,
        -math.inf,
    )
    device._anchor, device._anchor_s, device._next_anchor = Event(0.0, 0.0), 0.0, None
    device._free, device.n_released_twice = [], 0
    device.new_event = lambda: Marked(host)  # type: ignore[method-assign]
    device._slots, device._next_slot = torch.empty(SCALARS_UNDER_WAY), 0
    device._loss_every, device._loss_at, device.pinning = 1, (-1, 0.0), Pinning(wanted=True)
    return device


def test_a_mark_that_is_released_twice_is_handed_out_once() -> None:
    """Its event is in use again by then: two steps would share their times."""
    device = cuda_device(Host())
    first = device.mark()
    device.release(first)
    device.release(first)
    lent = [device.mark() for _ in range(2)]
    assert lent[0].event is first.event, "events are used again"
    device.release(first)  # its event is another mark's now
    lent.append(device.mark())
    assert len({id(mark.event) for mark in lent}) == len({id(mark) for mark in lent}) == 3
    assert device.n_released_twice == 2
    device.release(*lent)
    assert len({id(event) for event in device._free}) == len(device._free) == 3
    assert device.n_released_twice == 2


@pytest.mark.parametrize("drift", [100e-6, -100e-6])
@pytest.mark.parametrize(("wait_s", "work_s"), [(20e-3, 2e-3), (2e-3, 20e-3)])
@pytest.mark.parametrize("waits_for_the_loss", [True, False])
def test_drift_moves_no_share_by_a_point(
    drift: float, wait_s: float, work_s: float, waits_for_the_loss: bool
) -> None:
    """Steps that wait for data and then launch work; each one's marks are looked at a step later."""
    host = Host()
    host.drift, device = drift, cuda_device(host)
    queued, exposed_s, true_s = [], 0.0, 0.0
    while host.now < 600:
        busy_until, asked, end = host.free_s, host.now, device.mark()
        host.now += wait_s
        got, start = host.now, device.mark()
        true_s += max(0.0, got - max(asked, busy_until))
        host.now += 0.5e-3
        host.free_s = max(host.now, busy_until) + work_s
        if (
            waits_for_the_loss or host.free_s > host.now + 3 * work_s
        ):  # the host runs ahead by so much at most
            host.now = host.free_s
        queued.append((asked, got, end, start))
        if len(queued) > 8:
            asked, got, end, start = queued.pop(0)
            exposed_s += max(0.0, min(got, device.seconds(start)) - max(asked, device.seconds(end)))
            device.release(end, start)
    assert abs(exposed_s - true_s) / host.now < 0.01


@pytest.mark.parametrize("drift", [0.0, 30e-6, -30e-6])
@pytest.mark.parametrize("busy", [False, True])
def test_hours_cost_less_than_ten_microseconds(drift: float, busy: bool) -> None:
    """Three hours of a step every 2.1 s. A busy device runs an event 0.5 s after it was recorded; then only the moment
    when the host sees it tells of a clock that is ahead, and one that is behind cannot be told from work."""
    host, worst = Host(), 0.0
    device = cuda_device(host)
    for step in range(1, 5_000):
        recorded = step * 2.1
        happened = recorded + (0.5 if busy else 2e-6)
        host.now = happened + 3e-6
        at = device.seconds(Event(happened * (1 + drift), recorded))  # type: ignore[arg-type]
        worst = max(worst, abs(at - happened))
        assert recorded <= at <= host.now
    if busy and drift < 0:
        assert worst > TOLERANCE_S  # as the docstring says: no bound speaks, and nothing idles
    else:
        assert worst < TOLERANCE_S


def test_losses_of_short_steps_are_copied_now_and_then() -> None:
    """The first ones all are; then those of every n-th step, n a power of two, that two runs have them in common."""
    host = Host()
    device, kept = cuda_device(host), []
    for step in range(1200):
        host.now += 1e-3 if step < 1000 else 0.1
        losses = [
            device.keep(torch.tensor(float(step)), step) for _ in range(2)
        ]  # as a GAN has them
        assert math.isnan(losses[0]()) == math.isnan(losses[1]())
        if losses[0]() == step:
            kept.append(step)
    assert kept[:EACH_LOSS_UNTIL] == list(range(EACH_LOSS_UNTIL))
    often = [later - step for step, later in itertools.pairwise(kept) if 200 < step < 900]
    assert set(often) == {32}
    assert kept[-100:] == list(range(1100, 1200))  # each is worth it again


def test_where_pinning_is_refused_no_loss_is_copied() -> None:
    """The copy would wait for the device in each step."""
    device = cuda_device(Host())
    assert device.keep(torch.tensor(3.0), 0)() == 3.0
    device.pinning.refusal = Finding("note", "pinned memory", "refused", "")
    assert math.isnan(device.keep(torch.tensor(3.0), 1)())


def test_a_duration_keeps_its_resolution() -> None:
    host = Host()
    device = cuda_device(host)
    for second in range(1, 7200, 3):
        start = second + 0.25
        host.now = start + 0.5
        times = [device.seconds(Event(start + offset, start)) for offset in (0.0, 0.4e-3)]  # type: ignore[arg-type]
        assert times[1] - times[0] == pytest.approx(0.4e-3, abs=1e-6)


def test_the_anchor_moves_on_and_no_mark_is_older_than_it() -> None:
    """A copy in a stream of its own may be read after a mark that the device passed later."""
    host = Host()
    device = cuda_device(host)
    anchors = [device._anchor]
    for second in range(1, 8):
        host.now = second + 1.0
        for at in (second + 0.5, second + 0.1):
            mark = Event(at, at)
            assert device.seconds(mark) == pytest.approx(at)  # type: ignore[arg-type]
            device.release(mark)  # type: ignore[arg-type]
        anchors.append(device._anchor)
    assert len({id(anchor) for anchor in anchors}) > 3
    assert not {id(anchor) for anchor in anchors[-1:]} & {id(mark) for mark in device._free}


@given(
    offset=st.floats(-1e6, 1e6),
    moments=st.lists(
        st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=20
    ),
)
def test_no_time_breaks_its_bounds(
    offset: float, moments: list[tuple[float, float, float]]
) -> None:
    clock = HostClock(offset)
    for device_s, recorded, later in moments:
        assert recorded <= clock.to_host(device_s, recorded, recorded + later) <= recorded + later


def test_a_gpu_of_rocm_has_no_uuid_of_nvml_and_is_called_untested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = SimpleNamespace(name="MI300X", total_memory=1 << 34, major=9, minor=4, uuid="of ROCm")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda where: card)
    monkeypatch.setattr(CudaDevice, "free_memory_bytes", lambda device: 0.0)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    device = object.__new__(CudaDevice)
    device.torch_device = torch.device("cuda", 0)
    facts = device.environment()
    assert (facts["gpu_uuid"], facts["untested_device"]) == (None, "ROCm")
