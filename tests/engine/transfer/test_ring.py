"""The ring of buffers: reused, but never while a device may still read them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from vitprof.engine.transfer.pinned_buffers import Ring, to_pinned
from vitprof.measure.devices.cpu import CpuDevice
from vitprof.measure.devices.cuda import CudaDevice

SHAPE = (4, 2, 2, 1)


class Asynchronous(CpuDevice):
    """A device that lags behind: marks are numbers, and `passed` is the last one it has reached."""

    immediate = False

    def __init__(self) -> None:
        super().__init__(time.perf_counter)
        self.marks, self.passed = 0, 0
        self.released: list[int] = []
        self.mark: Any = self._next

    def _next(self) -> int:
        self.marks += 1
        return self.marks

    def reached(self, mark: float) -> bool:
        return mark <= self.passed

    def release(self, *marks: float) -> None:
        self.released += [int(mark) for mark in marks]


@pytest.fixture
def device() -> Asynchronous:
    return Asynchronous()


def test_a_buffer_comes_back_when_the_device_has_read_it(device: Asynchronous) -> None:
    ring = Ring(device)
    first = ring.take(SHAPE)
    assert (first.shape, first.dtype) == (torch.Size(SHAPE), torch.uint8)
    address = first.data_ptr()
    mark = device.mark()
    ring.give_back(first, mark)
    others = [ring.take(SHAPE) for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    device.passed = mark
    assert ring.take(SHAPE).data_ptr() == address
    assert device.released == [mark]


def test_what_is_lent_is_given_to_nobody_else(device: Asynchronous) -> None:
    ring = Ring(device)
    device.passed = 100
    lent = [ring.take(SHAPE) for _ in range(10)]
    assert len({buffer.data_ptr() for buffer in lent}) == 10


def test_buffers_come_back_in_the_order_in_which_they_were_read(device: Asynchronous) -> None:
    ring = Ring(device)
    buffers = [ring.take(SHAPE) for _ in range(3)]
    for buffer in buffers:
        ring.give_back(buffer, device.mark())
    device.passed = 2
    again = {ring.take(SHAPE).data_ptr() for _ in range(2)}
    assert again == {buffer.data_ptr() for buffer in buffers[:2]}
    assert ring.take(SHAPE).data_ptr() not in {buffer.data_ptr() for buffer in buffers}
    assert device.released == [1, 2]


def test_a_steady_loop_needs_few_buffers(device: Asynchronous) -> None:
    """A device three steps behind: four buffers, however long the epoch."""
    ring = Ring(device)
    used = set()
    for step in range(1, 50):
        buffer = ring.take(SHAPE)
        used.add(buffer.data_ptr())
        ring.give_back(buffer, device.mark())
        device.passed = step - 3
    assert len(used) == 4


def test_the_smaller_last_batch_has_buffers_of_its_own(device: Asynchronous) -> None:
    ring = Ring(device)
    buffers = [ring.take(SHAPE), ring.take((1, 2, 2, 1))]
    assert [buffer.shape for buffer in buffers] == [SHAPE, (1, 2, 2, 1)]
    addresses = [buffer.data_ptr() for buffer in buffers]
    for buffer in buffers:
        ring.give_back(buffer, device.mark())
    device.passed = 2
    assert [ring.take((1, 2, 2, 1)).data_ptr(), ring.take(SHAPE).data_ptr()] == addresses[::-1]


def test_a_larger_batch_gets_a_buffer_of_its_own(device: Asynchronous) -> None:
    ring = Ring(device)
    small = ring.take((1, 2, 2, 1))
    ring.give_back(small, device.mark())
    device.passed = 1
    large = ring.take(SHAPE)
    assert large.numel() == 16
    large.fill_(7)
    assert (large == 7).all()


def test_memory_of_others_is_left_alone(device: Asynchronous) -> None:
    ring = Ring(device)
    mine, foreign = ring.take(SHAPE), torch.zeros(SHAPE, dtype=torch.uint8)
    assert ring.holds(mine)
    assert ring.holds(mine.permute(0, 3, 1, 2))
    assert not ring.holds(foreign)
    ring.give_back(foreign, 0)
    assert ring.take(SHAPE).data_ptr() != foreign.data_ptr()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("order", ["channels last", "channels first"])
def test_images_go_through_a_buffer_in_the_order_they_lie_in_memory(
    device: Asynchronous, dtype: torch.dtype, order: str
) -> None:
    ring = Ring(device)
    images = torch.arange(24).to(dtype).view(2, 2, 2, 3)
    if order == "channels last":
        images = images.permute(0, 3, 1, 2)
    pinned = to_pinned(ring, images)
    assert torch.equal(pinned, images)
    assert (pinned.stride(), pinned.dtype) == (images.stride(), dtype)
    assert ring.holds(pinned)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here")
def test_buffers_for_a_gpu_are_pinned() -> None:
    assert Ring(CudaDevice("cuda:0", time.perf_counter)).take(SHAPE).is_pinned()
