"""Resident: the storage moves once, its batches never."""

from __future__ import annotations

import torch

from tests.engine.transfer.transfer_helpers import batch, cpu, cuda, gpu, pixels
from tests.engine_fixtures import SMALL
from vitprof.config import RunConfig
from vitprof.config.parts import TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.engine.devices.cpu import CpuDevice
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.order import epoch_order
from vitprof.engine.storage.memory import MemoryStorage
from vitprof.engine.transfer import open_transfer

CONFIG = RunConfig(strategy="resident", batch_size=8, device="cpu")


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
