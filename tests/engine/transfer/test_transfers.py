"""A transfer that is late on purpose: the wait is part of its copy, and everything else is the other transfer's."""

from __future__ import annotations

import time

import pytest
import torch

from tests.engine.transfer.transfer_helpers import batch, cpu, cuda, gpu, pixels
from vitprof.config.accelerators import accelerator
from vitprof.engine.transfer import Delayed, open_transfer
from vitprof.measure.devices import Device
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.stopwatch import Wait

LATE = Wait("transfer", 0.005)


def simulated() -> SimulatedDevice:
    return SimulatedDevice("simulated:1,0", accelerator("simulated:1,0"), time.perf_counter)


@pytest.mark.parametrize("name", ["blocking", "pinned"])
@pytest.mark.parametrize("device", [cpu(), simulated()], ids=["cpu", "simulated"])
def test_the_wait_is_part_of_the_copy(name: str, device: Device) -> None:
    transfer = open_transfer(name, device, lambda images: images, LATE)
    for n in (20, 3):
        before = time.perf_counter()
        moved = transfer(batch(n))
        assert torch.equal(moved.images, pixels(n))
        assert moved.labels.tolist() == list(range(n))
        assert moved.copy_start >= before
        assert moved.ready >= moved.copy_end >= moved.copy_start + LATE.seconds


@pytest.mark.parametrize("name", ["blocking", "pinned"])
def test_it_is_otherwise_the_transfer_that_it_delays(name: str) -> None:
    plain, late = (open_transfer(name, cpu(), lambda images: images, wait) for wait in (None, LATE))
    assert isinstance(late, Delayed)
    assert (late.buffer is None) == (plain.buffer is None)
    assert late.normalises == plain.normalises
    storage = object()
    assert late.place(storage) is storage


def test_waits_in_other_parts_are_none_of_its() -> None:
    assert not isinstance(open_transfer("blocking", cpu(), lambda images: images, Wait("read", 1.0)), Delayed)


@pytest.mark.parametrize("name", ["blocking", "pinned"])
class TestCuda:
    """With a real GPU."""

    pytestmark = gpu

    def test_the_wait_is_part_of_the_copy(self, name: str) -> None:
        device = cuda()
        transfer = open_transfer(name, device, lambda images: images, LATE)
        for _ in range(5):
            moved = transfer(batch())
            torch.cuda.synchronize()
            assert device.seconds(moved.copy_end) - device.seconds(moved.copy_start) >= 0.9 * LATE.seconds
            assert torch.equal(moved.images.cpu(), pixels())
            device.release(*{id(mark): mark for mark in moved[2:]}.values())
