"""Resident: the storage moves once, its batches never."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engine.transfer.transfer_helpers import batch, cpu, cuda, gpu, pixels
from tests.engine_fixtures import SMALL
from vitprof.config import RunConfig
from vitprof.config.parts import TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.contract import epoch_order
from vitprof.engine.storage.memory import MemoryStorage
from vitprof.engine.transfer import open_transfer
from vitprof.errors import DeviceError
from vitprof.measure.devices import CpuDevice

CONFIG = RunConfig(strategy="device", batch_size=8, device="cpu")


def storage(n: int = 20) -> MemoryStorage:
    return MemoryStorage(pixels(n).permute(0, 2, 3, 1).contiguous(), torch.arange(n))


def test_only_resident_moves_the_storage() -> None:
    device = CpuDevice(lambda: 0.0)
    device.torch_device = torch.device("meta")
    for name in TRANSFERS:
        kept = storage()
        placed = open_transfer(name, device, lambda images: images).place(kept)
        assert (placed is kept) == (name != "resident")
        assert placed.device.type == ("meta" if name == "resident" else "cpu")


def test_a_batch_is_there_already() -> None:
    made = batch()
    moved = open_transfer("resident", cpu(), lambda images: images)(made)
    assert moved.images is made.images
    assert moved.labels is made.labels
    assert moved.copy_start is moved.copy_end is moved.ready


class Later(CpuDevice):
    """A device that works later than it is told to; its marks are numbers in the order in which they were set."""

    immediate = False

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.marks = 0
        self.mark: Any = self._next

    def _next(self) -> int:
        self.marks += 1
        return self.marks


def test_a_gather_on_the_device_stands_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    device, at = Later(), []
    read = MemoryStorage.read

    def reads(self: MemoryStorage, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        at.append(device.marks)
        return read(self, indices, out)

    monkeypatch.setattr(MemoryStorage, "read", reads)
    transfer = open_transfer("resident", device, lambda images: images)
    loader = open_loader(transfer.place(storage()), SMALL, resolve(CONFIG), train=True, buffer=transfer.buffer)
    for made in loader.epoch(0):
        moved = transfer(made)
        assert moved.copy_start == moved.copy_end == at[-1]  # set right before the gather
        assert (moved.prepared, moved.ready) == (at[-1] + 1, at[-1] + 2)
        assert torch.equal(moved.images, pixels()[moved.labels])
    assert len(at) == 3
    again = transfer(batch())  # replayed: nothing was gathered
    assert again.prepared is None
    assert again.copy_start == again.ready


def test_a_set_that_does_not_fit_into_what_is_free_is_refused_before_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = storage()
    monkeypatch.setattr(CpuDevice, "free_memory_bytes", lambda self: kept.images.nbytes - 1.0)
    with pytest.raises(DeviceError, match=r"^transfer resident: a split of 20 images takes 15.3 KiB .* are free; "):
        open_transfer("resident", cpu(), lambda images: images).place(kept)
    monkeypatch.setattr(CpuDevice, "free_memory_bytes", lambda self: float(kept.images.nbytes))
    assert open_transfer("resident", cpu(), lambda images: images).place(kept).device.type == "cpu"


class TestCuda:
    """With a real GPU."""

    pytestmark = gpu

    def test_batches_are_made_on_the_device(self) -> None:
        device = cuda()
        transfer = open_transfer("resident", device, lambda images: images)
        loader = open_loader(transfer.place(storage()), SMALL, resolve(CONFIG), train=True, buffer=transfer.buffer)
        for epoch in (0, 1):
            moved = [transfer(made) for made in loader.epoch(epoch)]
            order = epoch_order(20, 42, epoch)
            assert {m.images.device for m in moved} == {m.labels.device for m in moved} == {device.torch_device}
            assert torch.equal(torch.cat([m.labels for m in moved]).cpu(), order)
            assert torch.equal(torch.cat([m.images for m in moved]).cpu(), pixels()[order])
        loader.close()
