"""Transfers: how a batch reaches the device, and what the model sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_fixtures import SMALL
from torchvision import transforms

from vitprof.storage.memory import MemoryStorage
from vitprof.strategies import STRATEGIES
from vitprof.transfer import Transfer, open_transfer
from vitprof.transfer.normalise import ToInput

CPU = torch.device("cpu")
NAMES = sorted({s.transfer for s in STRATEGIES.values()})
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here"),
]


def pixels(n: int = 20) -> torch.Tensor:
    """Every value that a byte can have, and random ones. (n, 1, 28, 28) uint8."""
    values = np.random.default_rng(0).integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)
    values.reshape(-1)[:256] = np.arange(256)
    return torch.from_numpy(values)


def storage(n: int = 20) -> MemoryStorage:
    return MemoryStorage(pixels(n), torch.arange(n), "uint8")


class TestToInput:
    def test_bytes_become_what_torchvision_makes_of_them(self) -> None:
        images = pixels()
        usual = transforms.Compose([transforms.ToTensor(), transforms.Normalize((SMALL.mean,), (SMALL.std,))])
        expected = torch.stack([usual(image[0].numpy()) for image in images])
        assert torch.equal(ToInput(SMALL, "uint8", 28)(images), expected)
        assert torch.equal(ToInput(SMALL, "unit", 28)(images.float() / 255), expected)
        assert torch.equal(ToInput(SMALL, "normalised", 28)(expected), expected)

    @pytest.mark.parametrize("kind", ["uint8", "unit"])
    def test_the_batch_stays_as_it_is(self, kind: str) -> None:
        images = pixels() if kind == "uint8" else pixels().float() / 255
        before = images.clone()
        ToInput(SMALL, kind, 28)(images)  # type: ignore[arg-type]
        assert torch.equal(images, before)

    @pytest.mark.parametrize("size", [14, 35, 56])
    def test_other_sizes_are_interpolated(self, size: int) -> None:
        images = pixels()
        resized = ToInput(SMALL, "uint8", size)(images)
        assert resized.shape == (20, 1, size, size)
        normalised = ToInput(SMALL, "uint8", 28)(images)
        assert torch.equal(resized, F.interpolate(normalised, (size, size), mode="bilinear", align_corners=False))


@pytest.mark.parametrize("name", NAMES)
def test_on_the_cpu_a_batch_arrives_as_it_was(name: str) -> None:
    transfer: Transfer = open_transfer(name, CPU)
    images, labels = storage().read_batch(torch.tensor([3, 1]))
    got_images, got_labels = transfer((images, labels))
    assert torch.equal(got_images, images)
    assert torch.equal(got_labels, labels)


@pytest.mark.parametrize("name", NAMES)
def test_only_resident_moves_the_storage(name: str) -> None:
    kept = storage()
    placed = open_transfer(name, torch.device("meta")).place(kept)
    assert (placed is kept) == (name != "resident")
    assert placed.device.type == ("meta" if name == "resident" else "cpu")


def test_an_unknown_transfer() -> None:
    with pytest.raises(KeyError):
        open_transfer("pigeon", CPU)


class TestCuda:
    """With a real GPU."""

    pytestmark = gpu

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("pin", [True, False])
    def test_the_same_bytes_arrive(self, name: str, pin: bool) -> None:
        device = torch.device("cuda", 0)
        transfer = open_transfer(name, device)
        placed = transfer.place(storage())
        batch = placed.read_batch(torch.tensor([3, 1], device=placed.device))
        if pin and placed.device.type == "cpu":
            batch = batch[0].pin_memory(), batch[1].pin_memory()
        images, labels = transfer(batch)
        torch.cuda.synchronize()
        assert images.device == labels.device == device
        assert torch.equal(images.cpu(), pixels()[[3, 1]])
        assert labels.tolist() == [3, 1]

    def test_a_pinned_batch_is_safe_after_it_is_let_go(self) -> None:
        """The loop drops each batch while its copy may still be on its way."""
        device = torch.device("cuda", 0)
        transfer = open_transfer("pinned", device)
        arrived = []
        torch.cuda._sleep(int(2e8))
        for i in range(50):
            arrived.append(transfer((torch.full((1 << 16,), i).pin_memory(), torch.tensor([i]).pin_memory())))
        torch.cuda.synchronize()
        assert all((images == i).all() and labels.item() == i for i, (images, labels) in enumerate(arrived))

    def test_the_gpu_normalises_to_what_the_cpu_does(self) -> None:
        expected = ToInput(SMALL, "uint8", 28)(pixels())
        assert torch.allclose(ToInput(SMALL, "uint8", 28)(pixels().cuda()).cpu(), expected, atol=1e-6)
