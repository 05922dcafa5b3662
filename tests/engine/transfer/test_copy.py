"""Blocking and pinned copies: the same bytes arrive, and no buffer is used again while a batch may still be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engine.transfer.transfer_helpers import batch, cpu, cuda, gpu, pixels, to_input
from tests.engine_fixtures import SMALL, never
from vitprof.config import RunConfig
from vitprof.config.parts import TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.engine.data import datasets
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.storage import open_storage
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.prepare import prepare_storage
from vitprof.engine.transfer import open_transfer
from vitprof.engine.transfer.copy import PinnedCopy


@pytest.mark.parametrize("name", TRANSFERS)
def test_on_the_cpu_a_batch_arrives_as_it_was(name: str) -> None:
    device = cpu()
    transfer = open_transfer(name, device, lambda images: images)
    for n in (20, 3):
        moved = transfer(batch(n))
        assert torch.equal(moved.images, pixels(n))
        assert moved.labels.tolist() == list(range(n))
        assert moved.copy_start <= moved.copy_end <= moved.ready


@pytest.mark.parametrize("name", TRANSFERS)
def test_only_the_prefetch_stream_normalises(name: str) -> None:
    device = cpu()
    transfer = open_transfer(name, device, to_input(device))
    assert transfer.normalises == (name == "stream")
    moved = transfer(batch())
    assert moved.images.dtype == (torch.float32 if name == "stream" else torch.uint8)


@pytest.mark.parametrize("name", TRANSFERS)
def test_only_pinned_copies_ask_for_memory_on_the_cpu(name: str) -> None:
    assert (open_transfer(name, cpu(), lambda images: images).buffer is not None) == (name == "pinned")


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize(("loader", "depth"), [("batches", 0), ("ahead", 1), ("ahead", 3), ("threads", 2)])
def test_a_loader_reuses_buffers_but_never_one_that_is_still_read(loader: str, depth: int) -> None:
    values: dict[str, Any] = {"strategy": "workers", "loader": loader, "transfer": "pinned", "batch_size": 32}
    values |= {"storage": "files" if loader == "threads" else "memory", "device": "cpu"}
    config = resolve(RunConfig(**values, prefetch_factor=depth or None))
    storage = open_split(config)
    transfer = PinnedCopy(cpu())
    made = open_loader(storage, SMALL, config, train=True, buffer=transfer.buffer)
    addresses, labels = set(), []
    previous: tuple[torch.Tensor, torch.Tensor] | None = None
    try:
        for epoch in range(3):
            for got in made.epoch(epoch):
                if previous is not None:  # trained on until now, while the loader made others
                    assert torch.equal(*previous)
                moved = transfer(got)
                previous = moved.images, moved.images.clone()
                addresses.add(moved.images.data_ptr())
                labels += moved.labels.tolist()
    finally:
        made.close()
    assert len(labels) == 3 * SMALL.n_train
    # one with the loop, one before it, those ahead of it, and one in the making; and those of the smaller last batch,
    # one of which may wait for the end of the next epoch
    assert len(addresses) <= depth + 3 + 2


def open_split(config: RunConfig) -> Any:
    root = datasets.prepare("digits")
    made = prepare_storage(config.storage or "", SMALL, root, progress=lambda *_: None, stop=never)
    return open_storage(config.storage or "", SMALL, Place(made.directory), train=True)


def test_batches_of_others_pass_a_pinned_copy_on_the_cpu() -> None:
    """What a worker process made lies in no buffer of the ring."""
    transfer = PinnedCopy(cpu())
    assert transfer.buffer is not None
    own = transfer.buffer((20, 28, 28, 1))
    own.copy_(pixels().permute(0, 2, 3, 1))
    first = transfer(Batch(own.permute(0, 3, 1, 2), torch.arange(20)))
    foreign = transfer(batch())
    assert torch.equal(foreign.images, pixels())
    assert transfer.buffer((20, 28, 28, 1)).data_ptr() == first.images.data_ptr()  # free since the second came


class TestCuda:
    """With a real GPU."""

    pytestmark = gpu

    @pytest.mark.parametrize("name", ["blocking", "pinned"])
    @pytest.mark.parametrize("memory", ["plain", "pinned", "ring", "device"])
    def test_the_same_bytes_arrive(self, name: str, memory: str) -> None:
        device = cuda()
        transfer = open_transfer(name, device, to_input(device))
        images = pixels()
        if memory == "pinned":
            images = images.pin_memory()
        elif memory == "device":
            images = images.cuda()
        elif memory == "ring":
            if transfer.buffer is None:
                pytest.skip("a blocking copy has no ring")
            images = transfer.buffer((20, 28, 28, 1)).copy_(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for _ in range(3):
            moved = transfer(Batch(images, torch.arange(20)))
            torch.cuda.synchronize()
            assert moved.images.device == moved.labels.device == device.torch_device
            assert torch.equal(moved.images.cpu(), pixels())
            assert moved.labels.tolist() == list(range(20))
            assert device.seconds(moved.copy_end) >= device.seconds(moved.copy_start)
            if memory == "ring":
                break  # it was given back

    def test_what_is_queued_is_not_overwritten(self) -> None:
        """The host fills the next buffers while a busy device has not read the first ones."""
        device = cuda()
        transfer = PinnedCopy(device)
        assert transfer.buffer is not None
        torch.cuda._sleep(int(2e8))
        arrived = []
        for i in range(50):
            images = transfer.buffer((64, 8, 8, 1)).fill_(i)
            arrived.append(transfer(Batch(images.permute(0, 3, 1, 2), torch.tensor([i]))))
        torch.cuda.synchronize()
        assert all((m.images == i).all() and m.labels.item() == i for i, m in enumerate(arrived))
        addresses = {transfer.buffer((64, 8, 8, 1)).data_ptr() for _ in range(3)}
        assert len(addresses) == 3

    def test_a_pinned_batch_is_safe_after_it_is_let_go(self) -> None:
        """The loop drops each batch of a DataLoader while its copy may still be on its way."""
        transfer = PinnedCopy(cuda())
        torch.cuda._sleep(int(2e8))
        arrived = []
        for i in range(50):
            images = torch.full((64, 1, 8, 8), i, dtype=torch.uint8).pin_memory()
            arrived.append(transfer(Batch(images, torch.tensor([i]).pin_memory())))
        torch.cuda.synchronize()
        assert all((m.images == i).all() and m.labels.item() == i for i, m in enumerate(arrived))
