"""What the model sees: torchvision's arithmetic to the bit, and random maps drawn from a seed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torchvision import transforms

from tests.engine.transfer.transfer_helpers import CPU, DIGITS, normalised, pixels
from vitprof.config.catalog import DATASETS
from vitprof.engine import augment
from vitprof.engine.transfer.normalise import ToInput

PHOTOS = dataclasses.replace(DATASETS["photos"], image_size=32)


def colours(n: int = 6) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_bytes_become_what_torchvision_makes_of_them() -> None:
    images = pixels()
    usual = transforms.Compose([transforms.ToTensor(), transforms.Normalize(DIGITS.mean, DIGITS.std)])
    expected = torch.stack([usual(image[0].numpy()) for image in images])
    assert torch.equal(ToInput(DIGITS, "uint8", 28, CPU)(images), expected)
    assert torch.equal(ToInput(DIGITS, "unit", 28, CPU)(images.float() / 255), expected)
    assert torch.equal(ToInput(DIGITS, "normalised", 28, CPU)(expected), expected)


def test_so_do_colours() -> None:
    usual = transforms.Compose([transforms.ToTensor(), transforms.Normalize(PHOTOS.mean, PHOTOS.std)])
    expected = torch.stack([usual(image.permute(1, 2, 0).numpy()) for image in colours()])
    got = ToInput(PHOTOS, "uint8", 32, CPU)(colours())
    assert torch.equal(got, expected)
    as_stored = colours().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert torch.equal(ToInput(PHOTOS, "uint8", 32, CPU)(as_stored), expected)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("kind", ["uint8", "unit", "normalised"])
def test_the_batch_stays_as_it_is(kind: str, seed: int | None) -> None:
    images = pixels() if kind == "uint8" else pixels().float() / 255
    before = images.clone()
    ToInput(DIGITS, kind, 28, CPU, augment_seed=seed)(images)  # type: ignore[arg-type]
    assert torch.equal(images, before)


@pytest.mark.parametrize("size", [14, 35, 56])
def test_other_sizes_are_interpolated(size: int) -> None:
    resized = ToInput(DIGITS, "uint8", size, CPU)(pixels())
    assert resized.shape == (20, 1, size, size)
    assert torch.equal(resized, F.interpolate(normalised(), (size, size), mode="bilinear", align_corners=False))


class TestAugmented:
    """Random maps on the device."""

    def test_the_seed_decides(self) -> None:
        first, same, other = (ToInput(PHOTOS, "uint8", 32, CPU, augment_seed=seed) for seed in (1, 1, 2))
        images = first(colours())
        assert torch.equal(images, same(colours()))
        assert not torch.equal(images, other(colours()))
        assert not torch.equal(images, first(colours()))  # the next batch is drawn anew

    def test_it_is_done_on_the_scaled_pixels(self) -> None:
        generator = torch.Generator().manual_seed(5)
        theta = augment.affine(torch.rand((6, augment.N_UNIFORM), generator=generator), PHOTOS)
        moved = augment.on_device(colours().float() / 255, theta)
        mean, std = torch.tensor(PHOTOS.mean).view(1, 3, 1, 1), torch.tensor(PHOTOS.std).view(1, 3, 1, 1)
        got = ToInput(PHOTOS, "uint8", 32, CPU, augment_seed=5)(colours())
        assert torch.equal(got, (moved - mean) / std)

    @pytest.mark.parametrize("kind", ["unit", "normalised"])
    def test_whatever_the_pixels_are(self, kind: str) -> None:
        """Beyond the image there is black, which is not 0 once the mean has been subtracted."""
        images = pixels().float() / 255 if kind == "unit" else normalised()
        got = ToInput(DIGITS, kind, 28, CPU, augment_seed=3)(images)  # type: ignore[arg-type]
        wanted = ToInput(DIGITS, "uint8", 28, CPU, augment_seed=3)(pixels())
        assert torch.allclose(got, wanted, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here")
def test_the_gpu_normalises_to_what_the_cpu_does() -> None:
    device = torch.device("cuda", 0)
    got = ToInput(DIGITS, "uint8", 28, device)(pixels().cuda()).cpu()
    assert torch.allclose(got, normalised(), atol=1e-6)
    augmented = ToInput(PHOTOS, "uint8", 32, device, augment_seed=1)(colours().cuda())
    assert augmented.shape == (6, 3, 32, 32)
    assert torch.isfinite(augmented).all()
