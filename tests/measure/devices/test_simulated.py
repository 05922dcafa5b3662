"""The simulated accelerator: its times are exactly those of what it imitates, and it takes nothing from the host."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.clock import Clock
from vitprof.config.accelerators import Accelerator
from vitprof.measure.devices import open_device
from vitprof.measure.devices.simulated import FORWARD_SHARE, SimulatedDevice

FAST_COPY = {"pinned_bytes_per_s": 1e6, "pageable_bytes_per_s": 0.5e6, "copy_latency_s": 0.0}


def simulated(**values: float) -> tuple[Clock, SimulatedDevice]:
    figures = {"step_s": 10.0, "sample_s": 1.0, "queue_steps": 3} | FAST_COPY | values
    host = Clock(100.0)
    return host, SimulatedDevice(
        "simulated:test", Accelerator("test", origin="", **figures), host, host.sleep
    )  # type: ignore[arg-type]


def pixels(n_bytes: int) -> torch.Tensor:
    return torch.zeros(n_bytes, dtype=torch.uint8)


def test_steps_are_done_in_order_and_the_host_goes_on() -> None:
    host, device = simulated()
    ends = []
    for samples in (2, 5, 0):
        device.launch(samples)
        ends.append(device.mark())
    assert ends == [112.0, 127.0, 137.0]
    assert host.slept == 0
    assert not device.reached(ends[0])
    host.now = 112.0
    assert device.reached(ends[0])
    assert not device.reached(ends[1])
    device.synchronize()
    assert host.now == 137.0
    device.launch(2, train=False)
    assert device.mark() == pytest.approx(137.0 + 12 * FORWARD_SHARE), (
        "evaluation takes a third of a step"
    )


def test_an_idle_device_begins_at_once() -> None:
    host, device = simulated()
    device.launch(0)
    ready, host.now = device.mark(), 200.0
    assert (ready, device.mark()) == (110.0, 200.0)
    assert device.launch(0) == 200.0  # held up between the batch's arrival and the launch, it idles
    assert (device.mark(), device.launch(0)) == (210.0, 210.0)


def test_the_launch_queue_is_bounded() -> None:
    host, device = simulated(queue_steps=2)
    for now in (100.0, 100.0, 110.0, 120.0):  # the first one must be done before a third
        device.launch(0)
        assert host.now == now


def test_the_host_waits_for_the_step_before_a_blocking_copy_and_for_no_queued_one() -> None:
    """As cudaMemcpy in the stream that trains does; out of pageable memory at its slower rate."""
    host, device = simulated()
    device.launch(0)  # until 110
    device.upload(pixels(3_000_000), non_blocking=True)
    assert (host.now, device.mark()) == (100.0, 113.0)
    device.launch(0)
    assert device.mark() == 123.0
    device.upload(pixels(1_000_000))
    assert host.now == pytest.approx(125.0, abs=2e-6)
    assert device.mark() == host.now


def test_a_copy_in_a_stream_of_its_own_runs_beside_compute() -> None:
    host, device = simulated()
    device.launch(0)  # until 110
    stream = device.stream()
    with stream.use():
        start = device.mark()
        batch = device.upload(pixels(4_000_000), non_blocking=True)
        end = device.mark()
    assert (start, end) == (100.0, 104.0)
    with device.stream().use():
        device.upload(pixels(1_000_000), non_blocking=True)
        assert device.mark() == 105.0, "there is one copy engine"
    stream.join(batch)
    assert device.mark() == 110.0  # hidden
    host.now = 120.0
    with stream.use():
        device.upload(pixels(4_000_000), non_blocking=True)
    device.launch(0)  # does not wait for a copy that it was not told of
    stream.join()
    device.launch(0)
    assert device.mark() == 140.0


def test_utilisation_looks_back_a_sixth_of_a_second() -> None:
    host, device = simulated(step_s=0.05, sample_s=0.0)
    gauges = device.gauges
    assert gauges() == {"gpu_util_pct": 0.0}
    device.launch(1)
    host.now += 0.05
    assert gauges()["gpu_util_pct"] == pytest.approx(30)
    host.now += 1 / 6 - 0.05 + 0.025
    assert gauges()["gpu_util_pct"] == pytest.approx(15)
    for _ in range(3):
        device.launch(1)
    host.now += 0.15
    device.launch(1)
    host.now += 1 / 6 - 0.15 - 1e-9
    assert gauges()["gpu_util_pct"] == pytest.approx(100, abs=1e-3)


@pytest.mark.parametrize("step_s", [0.03, 0.3, 2.0])
def test_utilisation_of_a_device_that_never_rests(step_s: float) -> None:
    """However far ahead of it the host is."""
    _, device = simulated(step_s=step_s, sample_s=0.0)
    for _ in range(12):
        device.launch(1)
    for _ in range(60):
        device.launch(1)
        assert device.utilisation_pct() == pytest.approx(100)


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 20), st.booleans()), min_size=1, max_size=40
    ),
    st.integers(1, 4),
)
def test_whatever_the_host_does(work: list[tuple[float, int, bool]], depth: int) -> None:
    """One step at a time, each as long as it should be, none before it was launched; the queue holds no more."""
    host, device = simulated(queue_steps=depth)
    previous, ends = 0.0, []
    for pause, samples, blocking in work:
        host.now += pause
        device.upload(pixels(samples * 100_000), non_blocking=not blocking)
        launched = host.now
        device.launch(samples)
        end = device.mark()
        assert end - (10 + samples) >= max(launched, previous) - 1e-9
        ends.append(end)
        assert sum(e > host.now for e in ends) <= depth
        previous = end
    device.synchronize()
    assert host.now >= previous


def test_it_spends_no_cpu() -> None:
    device = open_device("simulated:20,0", time.perf_counter)
    assert isinstance(device, SimulatedDevice)
    began, cpu = time.perf_counter(), time.thread_time()
    for _ in range(15):
        device.launch(64)
    device.synchronize()
    took, used = time.perf_counter() - began, time.thread_time() - cpu
    assert took >= 0.3
    assert used < took / 10


def test_what_it_says_of_itself() -> None:
    device = open_device("simulated:rtx2060-article", time.perf_counter)
    facts = device.environment()
    assert facts["simulated"] is True
    assert "simulated" in facts["device_name"]
    assert "66 ms" in facts["device_name"]
    assert device.torch_device == torch.device("cpu")
