"""Staging: images and labels in one piece of page-locked memory, put there before the copy begins."""

from __future__ import annotations

import pytest
import torch

from tests.cuda_stand_in import Card
from tests.engine.transfer.transfer_helpers import batch, cpu, pixels
from vitprof.config.accelerators import Accelerator
from vitprof.engine.batch import Batch
from vitprof.engine.transfer.contract import Transfer
from vitprof.engine.transfer.pinned_buffers import Packed, Staging, staged
from vitprof.engine.transfer.registry import open_transfer
from vitprof.measure.devices import Pinning
from vitprof.measure.devices.simulated import SimulatedDevice


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


def opened(name: str) -> tuple[Counting, Transfer]:
    device = Counting()
    return device, open_transfer(name, device, lambda images: images)


@pytest.mark.parametrize("name", ["pinned", "stream"])
@pytest.mark.parametrize("n", [20, 3, 1])
@pytest.mark.parametrize("own", [False, True], ids=["foreign", "in-the-ring"])
def test_one_copy_takes_images_and_labels(name: str, n: int, own: bool) -> None:
    device, transfer = opened(name)
    assert transfer.stage is not None
    assert transfer.buffer is not None
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
    assert transfer.stage is not None
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
    transfer = open_transfer(name, card.device(monkeypatch), lambda images: images)
    assert transfer.stage is not None
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
    transfer = open_transfer(name, card.device(monkeypatch), lambda images: images)
    assert transfer.stage is not None
    made = Batch(pixels().pin_memory(), torch.arange(20).pin_memory())
    assert transfer.stage(made) is made
    moved = transfer(made)
    assert card.copied == [made.images.nbytes, made.labels.nbytes]
    assert torch.equal(moved.images, made.images)


@pytest.mark.parametrize("name", ["blocking", "resident"])
def test_other_transfers_have_nothing_to_stage(name: str) -> None:
    assert opened(name)[1].stage is None


@pytest.mark.parametrize("name", ["pinned", "stream"])
def test_nor_has_the_cpu(name: str) -> None:
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
