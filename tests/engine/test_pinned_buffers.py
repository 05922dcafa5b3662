"""The ring of buffers: reused, but never while a device may still read them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.cuda_stand_in import Card
from tests.engine.transfer_helpers import batch, cpu, pixels
from vitprof.config.accelerators import Accelerator
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.pinned_buffers import Packed, Ring, Staging, staged, to_pinned
from vitprof.engine.transfer import open_transfer
from vitprof.measure.devices import CpuDevice, Pinning
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.measure.devices.simulated import SimulatedDevice

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


class Host:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Counting(SimulatedDevice):
    """A device that is not there, and the copies that it is asked for."""

    def __init__(self) -> None:
        super().__init__("simulated:test", Accelerator("test", 1e-3, 0.0, "", copy_latency_s=1e-3), Host())
        self.copied: list[int] = []

    def upload(self, tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        self.copied.append(tensor.nbytes)
        return super().upload(tensor.clone(), non_blocking=non_blocking)


def opened(name: str) -> tuple[Counting, Any]:
    device = Counting()
    return device, open_transfer(name, device, lambda images: images)


@pytest.mark.parametrize("name", ["pinned", "stream"])
@pytest.mark.parametrize("n", [20, 3, 1])
@pytest.mark.parametrize("own", [False, True], ids=["foreign", "in-the-ring"])
def test_one_copy_takes_images_and_labels(name: str, n: int, own: bool) -> None:
    device, transfer = opened(name)
    made = batch(n)
    if own:  # what a loader of this process does; of 25, some could not be read
        buffer = transfer.buffer((25, 28, 28, 1))
        buffer[:n] = made.images.permute(0, 2, 3, 1)
        made = made._replace(images=buffer[:n].permute(0, 3, 1, 2))
    moved = transfer(transfer.stage(made))
    assert len(device.copied) == 1
    assert torch.equal(moved.images, pixels(n))
    assert moved.labels.tolist() == list(range(n))
    assert moved.labels.dtype == torch.int64
    assert moved.images.shape == (n, 1, 28, 28)
    assert moved.images.is_contiguous(memory_format=torch.channels_last) or n == 1


@pytest.mark.parametrize("name", ["pinned", "stream"])
def test_what_need_not_or_cannot_be_staged_stays_as_it_is(name: str) -> None:
    """Floats: on this device nobody's DataLoader pins, which would have put them there meanwhile."""
    device, transfer = opened(name)
    floats = Batch(pixels().float(), torch.arange(20))
    nothing = Batch(torch.empty((0, 1, 28, 28), dtype=torch.uint8), torch.arange(0))
    elsewhere = Batch(torch.empty((4, 1, 28, 28), dtype=torch.uint8, device="meta"), torch.arange(4))
    for made in (floats, nothing, elsewhere):
        assert transfer.stage(made) is made
    moved = transfer(floats)
    assert device.copied == [floats.images.nbytes, floats.labels.nbytes]
    assert torch.equal(moved.images, floats.images)


@pytest.mark.parametrize("name", ["pinned", "stream"])
@pytest.mark.parametrize("n", [20, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_on_a_gpu_one_copy_out_of_pinned_memory_takes_them_whatever_their_type(
    name: str, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card()
    transfer: Any = open_transfer(name, card.device(monkeypatch), lambda images: images)
    made = batch(n)._replace(images=pixels(n).to(dtype))
    staged_batch = transfer.stage(made)
    assert staged_batch.images.is_pinned()
    assert staged_batch.labels.is_pinned()
    moved = transfer(staged_batch)
    assert card.calls.count("copy") == 1
    assert torch.equal(moved.images, made.images)
    assert moved.images.dtype == dtype
    assert moved.labels.tolist() == list(range(n))


@pytest.mark.parametrize("name", ["pinned", "stream"])
def test_what_a_dataloader_pinned_is_not_copied_on_the_host_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    transfer: Any = open_transfer(name, card.device(monkeypatch), lambda images: images)
    made = Batch(pixels().pin_memory(), torch.arange(20).pin_memory())
    assert transfer.stage(made) is made
    moved = transfer(made)
    assert card.copied == [made.images.nbytes, made.labels.nbytes]
    assert torch.equal(moved.images, made.images)


@pytest.mark.parametrize(
    ("name", "stages"), [("blocking", False), ("resident", False), ("pinned", True), ("stream", True)]
)
def test_other_transfers_and_the_cpu_have_nothing_to_stage(name: str, stages: bool) -> None:
    assert bool(opened(name)[1].stage) == stages
    assert open_transfer(name, cpu(), lambda images: images).stage is None


@pytest.mark.parametrize("shape", [(3, 5, 7, 3), (1, 1, 1, 1), (8, 2, 2, 2)])
def test_labels_lie_where_int64_may_lie(shape: tuple[int, ...]) -> None:
    packed = Packed.of(shape, torch.uint8, Pinning(wanted=False))
    assert packed.labels.data_ptr() % 8 == 0
    packed.images.fill_(255)
    packed.labels.copy_(torch.arange(shape[0]) - 1)
    images, labels = packed.split(packed.whole.clone(), packed.images.permute(0, 3, 1, 2))
    assert (images == 255).all()
    assert labels.tolist() == [i - 1 for i in range(shape[0])]


def test_a_buffer_is_used_again_with_the_labels_of_its_batch() -> None:
    device = Counting()
    staging = Staging(device)
    addresses = set()
    for i in range(5):
        made = staging.stage(Batch(pixels(4), torch.full((4,), i)))
        assert made.labels.tolist() == [i] * 4
        staging.upload(made)
        staging.let_go(made.images)
        device._clock.now += 1.0  # type: ignore[attr-defined]
        addresses.add(made.images.data_ptr())
    assert len(addresses) == 1


def test_closing_ends_the_epoch_that_is_staged() -> None:
    ended = []

    def epoch():  # type: ignore[no-untyped-def]
        try:
            yield batch(1)
            yield batch(2)
        finally:
            ended.append(True)

    batches = staged(epoch(), lambda made: made._replace(unreadable=("x",)))
    assert next(batches).unreadable == ("x",)
    batches.close()
    assert ended == [True]
