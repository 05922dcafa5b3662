"""Random flip, crop and rotation: the same geometry whoever does the work, and within its bounds."""

from __future__ import annotations

import dataclasses
import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from vitprof.config.catalog import DATASETS, DatasetInfo
from vitprof.engine import augment

DIGITS = DATASETS["digits"]
PHOTOS = dataclasses.replace(DATASETS["photos"], image_size=64)
IDENTITY = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
INFOS = [DIGITS, PHOTOS, dataclasses.replace(DIGITS, flips=True), dataclasses.replace(PHOTOS, flips=False)]
MEAN_TOLERANCE = 1.0
"""Mean difference (of 255) between the device's and the CPU's version of a smooth image: OpenCV rounds to uint8, and
some of its versions place samples to 1/32 pixel."""
LARGEST_TOLERANCE = 24
"""The same for a single pixel, at the border of the image most of all."""


def uniform(n: int = 2000, seed: int = 0) -> torch.Tensor:
    return torch.rand((n, augment.N_UNIFORM), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smooth(n: int, info: DatasetInfo) -> NDArray[np.uint8]:
    """Images (n, side, side, channels) without sharp edges."""
    coarse = np.random.default_rng(0).integers(0, 256, (n, 5, 5, info.channels), dtype=np.uint8)
    side = (info.image_size, info.image_size)
    images = np.stack([cv2.resize(image, side, interpolation=cv2.INTER_LINEAR) for image in coarse])
    return images.reshape(n, *side, info.channels)


@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.name}-{info.flips}")
def test_device_and_cpu_make_the_same_images(info: DatasetInfo) -> None:
    theta = augment.affine(uniform(40), info)
    images = smooth(40, info)
    on_device = augment.on_device(torch.from_numpy(images).permute(0, 3, 1, 2).float(), theta)
    augment.on_cpu(images, theta)
    difference = np.abs(on_device.permute(0, 2, 3, 1).numpy() - images)
    assert difference.mean(axis=(1, 2, 3)).max() < MEAN_TOLERANCE
    assert difference.max() < LARGEST_TOLERANCE


@pytest.mark.parametrize("info", [DIGITS, PHOTOS], ids=lambda info: info.name)
def test_nothing_happens_under_the_identity(info: DatasetInfo) -> None:
    images = smooth(1, info)
    moved = images.copy()
    augment.on_cpu(moved, IDENTITY)
    assert np.array_equal(moved, images)
    device = augment.on_device(torch.from_numpy(images).permute(0, 3, 1, 2).float(), IDENTITY)
    assert torch.allclose(device.permute(0, 2, 3, 1), torch.from_numpy(images).float(), atol=1e-2)


@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.name}-{info.flips}")
def test_images_are_mirrored_only_where_that_keeps_their_class(info: DatasetInfo) -> None:
    theta = augment.affine(uniform(), info)
    mirrored = torch.linalg.det(theta[:, :, :2]) < 0
    assert 0.45 < mirrored.double().mean() < 0.55 if info.flips else not mirrored.any()


def test_a_mirrored_image_is_the_image_mirrored() -> None:
    flip = torch.tensor([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    images = smooth(1, PHOTOS)
    moved = images.copy()
    augment.on_cpu(moved, flip)
    assert np.array_equal(moved, images[:, :, ::-1])


def test_a_shift_brings_in_black() -> None:
    """Two pixels to the right of where the sample looks: the last two columns lie outside."""
    shift = torch.tensor([[[1.0, 0.0, 2 * 2 / 28], [0.0, 1.0, 0.0]]])
    images = np.full((1, 28, 28, 1), 200, np.uint8)
    images[:, :, 10] = 100
    expected = np.full((1, 28, 28, 1), 200, np.uint8)
    expected[:, :, 8] = 100
    expected[:, :, 26:] = 0
    device = augment.on_device(torch.from_numpy(images).permute(0, 3, 1, 2).float(), shift)
    augment.on_cpu(images, shift)
    assert np.array_equal(images, expected)
    assert np.abs(device.permute(0, 2, 3, 1).numpy() - expected).max() < 0.01


def scales(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Width and height that a sample sees, as shares of the image."""
    return theta[:, :, 0].norm(dim=1), theta[:, :, 1].norm(dim=1)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=6, max_size=6))
def test_maps_stay_within_their_bounds(numbers: list[float]) -> None:
    drawn = torch.tensor([numbers], dtype=torch.float64)
    for info in INFOS:
        theta = augment.affine(drawn, info)
        width, height = scales(theta)
        angle = torch.atan2(theta[:, 0, 1].neg(), theta[:, 1, 1])
        assert angle.abs() <= augment.ROTATION_RAD + 1e-9
        assert torch.equal(theta[:, :, 2].abs() <= 1, torch.tensor([[True, True]]))
        if info.kind == "idx":
            assert (float(width), float(height)) == pytest.approx((1, 1))
            assert (theta[:, :, 2].abs() * info.image_size / 2 <= augment.PADDED_CROP_PX + 1e-9).all()
        else:
            area = float(width * height)
            assert area <= 1 + 1e-9
            assert area >= augment.CROP_AREA[0] - 1e-9 or float(torch.maximum(width, height)) == pytest.approx(1)
            # before it is rotated the crop lies within the image
            assert (theta[:, 0, 2].abs() + width <= 1 + 1e-9).all()
            assert (theta[:, 1, 2].abs() + height <= 1 + 1e-9).all()


def test_crops_cover_the_range() -> None:
    width, height = scales(augment.affine(uniform(), PHOTOS))
    assert float((width * height).min()) < augment.CROP_AREA[0] + 0.05
    assert float((width * height).max()) > 0.95
    assert float(augment.affine(uniform(), DIGITS)[:, 0, 0].arccos().max()) > 0.95 * math.radians(15)


def test_pixels_of_the_map() -> None:
    """A quarter turn and a shift, written down by hand: x' = 28 - 1 - y + 1.4, y' = x."""
    theta = torch.tensor([[[0.0, -1.0, 0.1], [1.0, 0.0, 0.0]]])
    assert augment.in_pixels(theta, 28)[0] == pytest.approx(np.array([[0, -1, 28.4], [1, 0, 0]]), abs=1e-5)


class TestNumbersOfASample:
    def test_they_depend_on_seed_epoch_and_index_alone(self) -> None:
        drawn = augment.sample_uniform(42, 3, 17, 6)
        assert drawn.shape == (6,)
        assert np.array_equal(drawn, augment.sample_uniform(42, 3, 17, 6))
        for other in ((43, 3, 17), (42, 4, 17), (42, 3, 18), (3, 42, 17)):
            assert not np.array_equal(drawn, augment.sample_uniform(*other, 6))

    def test_the_largest_seed(self) -> None:
        assert not np.array_equal(
            augment.sample_uniform(2**32 - 1, 2**31, 2**40, 3), augment.sample_uniform(2**32 - 1, 2**31, 2**40 + 1, 3)
        )

    def test_they_are_uniform(self) -> None:
        drawn = np.array([augment.sample_uniform(42, 0, index, 6) for index in range(3000)])
        assert 0 <= drawn.min() < drawn.max() < 1
        assert drawn.mean(axis=0) == pytest.approx(np.full(6, 0.5), abs=0.03)
        assert np.abs(np.corrcoef(drawn.T) - np.eye(6)).max() < 0.08
