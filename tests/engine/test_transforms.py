"""Crops as torchvision's, random maps alike on CPU and device, and the model's input to the bit."""

import dataclasses
import itertools
import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torchvision import transforms as tv
from torchvision.transforms import v2

from tests.engine.transfer_helpers import CPU, DIGITS, normalised, pixels
from vitprof.datasets.catalog import DATASETS, DatasetInfo
from vitprof.engine import transforms
from vitprof.engine.transforms import (
    AREA_SHARE,
    ASPECT_RATIO,
    N_CROP_UNIFORM,
    Crop,
    ToInput,
    centre_crop,
    random_crop,
)

PHOTOS = dataclasses.replace(DATASETS["photos"], image_size=64)
IDENTITY = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
INFOS = [
    DIGITS,
    PHOTOS,
    dataclasses.replace(DIGITS, flips=True),
    dataclasses.replace(PHOTOS, flips=False),
]
MEAN_TOLERANCE = 1.0
"""Mean difference (of 255) between the device's and the CPU's version of a smooth image: OpenCV rounds to uint8, and
some of its versions place samples to 1/32 pixel."""
LARGEST_TOLERANCE = 24
"""The same for a single pixel, at the border of the image most of all."""


def uniform(n: int = 2000, seed: int = 0) -> torch.Tensor:
    return torch.rand(
        (n, transforms.N_UNIFORM),
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )


def smooth(n: int, info: DatasetInfo) -> NDArray[np.uint8]:
    """Images (n, side, side, channels) without sharp edges."""
    coarse = np.random.default_rng(0).integers(0, 256, (n, 5, 5, info.channels), dtype=np.uint8)
    side = (info.image_size, info.image_size)
    images = np.stack([cv2.resize(image, side, interpolation=cv2.INTER_LINEAR) for image in coarse])
    return images.reshape(n, *side, info.channels)


def moved(
    images: NDArray[np.uint8], theta: torch.Tensor
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """What the device and the CPU make of images under these maps."""
    on_device = transforms.on_device(torch.from_numpy(images).permute(0, 3, 1, 2).float(), theta)
    on_cpu = images.copy()
    transforms.on_cpu(on_cpu, theta)
    return on_device.permute(0, 2, 3, 1).numpy(), on_cpu


@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.name}-{info.flips}")
def test_device_and_cpu_make_the_same_images(info: DatasetInfo) -> None:
    on_device, on_cpu = moved(smooth(40, info), transforms.affine(uniform(40), info))
    difference = np.abs(on_device - on_cpu)
    assert difference.mean(axis=(1, 2, 3)).max() < MEAN_TOLERANCE
    assert difference.max() < LARGEST_TOLERANCE


@pytest.mark.parametrize("info", [DIGITS, PHOTOS], ids=lambda info: info.name)
def test_nothing_happens_under_the_identity_and_a_mirrored_image_is_the_image_mirrored(
    info: DatasetInfo,
) -> None:
    images = smooth(1, info)
    _, flipped = moved(images, torch.tensor([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]))
    assert np.array_equal(flipped, images[:, :, ::-1])
    on_device, on_cpu = moved(images, IDENTITY)
    assert np.array_equal(on_cpu, images)
    assert np.allclose(on_device, images, atol=1e-2)


@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.name}-{info.flips}")
def test_images_are_mirrored_only_where_that_keeps_their_class(info: DatasetInfo) -> None:
    theta = transforms.affine(uniform(), info)
    mirrored = torch.linalg.det(theta[:, :, :2]) < 0
    assert 0.45 < mirrored.double().mean() < 0.55 if info.flips else not mirrored.any()


def test_a_shift_brings_in_black() -> None:
    """Two pixels to the right of where the sample looks: the last two columns lie outside."""
    shift = torch.tensor([[[1.0, 0.0, 2 * 2 / 28], [0.0, 1.0, 0.0]]])
    images = np.full((1, 28, 28, 1), 200, np.uint8)
    images[:, :, 10] = 100
    expected = np.full((1, 28, 28, 1), 200, np.uint8)
    expected[:, :, 8] = 100
    expected[:, :, 26:] = 0
    on_device, on_cpu = moved(images, shift)
    assert np.array_equal(on_cpu, expected)
    assert np.abs(on_device - expected).max() < 0.01


def scales(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Width and height that a sample sees, as shares of the image."""
    return theta[:, :, 0].norm(dim=1), theta[:, :, 1].norm(dim=1)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=6, max_size=6))
def test_maps_stay_within_their_bounds(numbers: list[float]) -> None:
    drawn = torch.tensor([numbers], dtype=torch.float64)
    for info in INFOS:
        theta = transforms.affine(drawn, info)
        width, height = scales(theta)
        angle = torch.atan2(theta[:, 0, 1].neg(), theta[:, 1, 1])
        assert angle.abs() <= transforms.ROTATION_RAD + 1e-9
        assert torch.equal(theta[:, :, 2].abs() <= 1, torch.tensor([[True, True]]))
        if info.kind == "idx":
            assert (float(width), float(height)) == pytest.approx((1, 1))
            assert (
                theta[:, :, 2].abs() * info.image_size / 2 <= transforms.PADDED_CROP_PX + 1e-9
            ).all()
        else:
            area = float(width * height)
            assert area <= 1 + 1e-9
            assert area >= transforms.CROP_AREA[0] - 1e-9 or float(
                torch.maximum(width, height)
            ) == pytest.approx(1)
            # before it is rotated the crop lies within the image
            assert (theta[:, 0, 2].abs() + width <= 1 + 1e-9).all()
            assert (theta[:, 1, 2].abs() + height <= 1 + 1e-9).all()


def test_crops_cover_the_range_and_pixels_of_the_map() -> None:
    """The map: a quarter turn and a shift, written down by hand: x' = 28 - 1 - y + 1.4, y' = x."""
    width, height = scales(transforms.affine(uniform(), PHOTOS))
    assert float((width * height).min()) < transforms.CROP_AREA[0] + 0.05
    assert float((width * height).max()) > 0.95
    assert float(
        transforms.affine(uniform(), DIGITS)[:, 0, 0].arccos().max()
    ) > 0.95 * math.radians(15)
    theta = torch.tensor([[[0.0, -1.0, 0.1], [1.0, 0.0, 0.0]]])
    assert transforms.in_pixels(theta, 28)[0] == pytest.approx(
        np.array([[0, -1, 28.4], [1, 0, 0]]), abs=1e-5
    )


def test_numbers_of_a_sample_are_uniform_and_depend_on_seed_epoch_and_index_alone() -> None:
    drawn = transforms.sample_uniform(42, 3, 17, 6)
    assert drawn.shape == (6,)
    assert np.array_equal(drawn, transforms.sample_uniform(42, 3, 17, 6))
    for other in ((43, 3, 17), (42, 4, 17), (42, 3, 18), (3, 42, 17)):
        assert not np.array_equal(drawn, transforms.sample_uniform(*other, 6))
    largest = [transforms.sample_uniform(2**32 - 1, 2**31, 2**40 + i, 3) for i in (0, 1)]
    assert not np.array_equal(*largest)
    drawn = np.array([transforms.sample_uniform(42, 0, index, 6) for index in range(3000)])
    assert 0 <= drawn.min() < drawn.max() < 1
    assert drawn.mean(axis=0) == pytest.approx(np.full(6, 0.5), abs=0.03)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(6)).max() < 0.08


@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (333, 500), (256, 256), (1000, 1000), (500, 9000)]
)
def test_centre_crop_is_torchvisions(height: int, width: int) -> None:
    """The position of each pixel, carried through torchvision's transforms as colour."""
    rows, columns = torch.meshgrid(
        torch.arange(float(height)), torch.arange(float(width)), indexing="ij"
    )
    positions = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])(
        torch.stack([rows, columns])
    )
    crop = centre_crop(height, width, 224)
    assert crop.height == crop.width
    step = crop.height / 224
    for positions_of_axis, first in (
        (positions[0, :, 0], crop.top),
        (positions[1, 0, :], crop.left),
    ):
        ours = first - 0.5 + step * (torch.arange(224) + 0.5)
        # Half a pixel for the corner and half for the side, which are whole pixels; at the border torchvision's
        # filter reaches beyond the crop. A little for torchvision's stretching to whole pixels.
        assert (positions_of_axis - ours).abs().max() < 1.1


def test_centre_crop_of_tiny_images_and_of_those_of_the_right_size() -> None:
    assert centre_crop(28, 28, 28) == Crop(0, 0, 28, 28, False)
    assert centre_crop(224, 224, 224) == Crop(0, 0, 224, 224)
    for height, width in itertools.product((1, 2, 3), (1, 2, 500)):
        inside(centre_crop(height, width, 224), height, width)


def inside(crop: Crop, height: int, width: int) -> None:
    assert 0 <= crop.top <= crop.top + crop.height <= height
    assert 0 <= crop.left <= crop.left + crop.width <= width
    assert crop.height > 0
    assert crop.width > 0


@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (1, 1), (2, 900), (900, 2), (28, 28), (60, 100)]
)
def test_random_crops_lie_inside(height: int, width: int) -> None:
    corners = [np.zeros(N_CROP_UNIFORM), np.full(N_CROP_UNIFORM, np.nextafter(1.0, 0))]
    for u in (*corners, *np.random.default_rng(1).random((100, N_CROP_UNIFORM))):
        inside(random_crop(height, width, u), height, width)


def test_random_crops_are_distributed_as_torchvisions() -> None:
    n, height, width = 4000, 375, 500
    ours = [
        random_crop(height, width, u) for u in np.random.default_rng(2).random((n, N_CROP_UNIFORM))
    ]
    torch.manual_seed(2)
    image = torch.empty(1, height, width)
    theirs = [v2.RandomResizedCrop(224).make_params([image]) for _ in range(n)]
    for name in ("top", "left", "height", "width"):
        a = np.array([getattr(crop, name) for crop in ours])
        b = np.array([params[name] for params in theirs])
        # five standard errors of a difference of means, and of spreads (about that of a normal distribution's)
        assert abs(a.mean() - b.mean()) < 5 * np.hypot(a.std(), b.std()) / np.sqrt(n), name
        assert abs(a.std() - b.std()) < 5 * np.hypot(a.std(), b.std()) / np.sqrt(2 * n), name
    flips = sum(crop.flip for crop in ours)
    assert abs(flips - n / 2) < 5 * np.sqrt(n) / 2
    for crop in ours:
        assert AREA_SHARE[0] * 0.97 < crop.height * crop.width / (height * width) <= AREA_SHARE[1]
        assert ASPECT_RATIO[0] * 0.97 < crop.width / crop.height < ASPECT_RATIO[1] * 1.03


SMALL_PHOTOS = dataclasses.replace(DATASETS["photos"], image_size=32)


def colours(n: int = 6) -> torch.Tensor:
    return torch.randint(
        0, 256, (n, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )


def test_bytes_become_what_torchvision_makes_of_them() -> None:
    images = pixels()
    usual = tv.Compose([tv.ToTensor(), tv.Normalize(DIGITS.mean, DIGITS.std)])
    expected = torch.stack([usual(image[0].numpy()) for image in images])
    assert torch.equal(ToInput(DIGITS, "uint8", 28, CPU)(images), expected)
    assert torch.equal(ToInput(DIGITS, "unit", 28, CPU)(images.float() / 255), expected)
    assert torch.equal(ToInput(DIGITS, "normalised", 28, CPU)(expected), expected)
    usual = tv.Compose([tv.ToTensor(), tv.Normalize(SMALL_PHOTOS.mean, SMALL_PHOTOS.std)])
    expected = torch.stack([usual(image.permute(1, 2, 0).numpy()) for image in colours()])
    as_stored = colours().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    half = ToInput(DIGITS, "uint8", 28, CPU, dtype=torch.bfloat16)(images)
    assert (half.dtype, torch.equal(half, normalised().bfloat16())) == (torch.bfloat16, True)
    for images in (colours(), as_stored):
        assert torch.equal(ToInput(SMALL_PHOTOS, "uint8", 32, CPU)(images), expected)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("kind", ["uint8", "unit", "normalised"])
def test_the_batch_stays_as_it_is(kind: str, seed: int | None) -> None:
    images = pixels() if kind == "uint8" else pixels().float() / 255
    before = images.clone()
    ToInput(DIGITS, kind, 28, CPU, augment_seed=seed)(images)  # type: ignore[arg-type]
    assert torch.equal(images, before)


def test_the_seed_decides_on_the_random_maps_of_the_scaled_pixels() -> None:
    first, same, other = (
        ToInput(SMALL_PHOTOS, "uint8", 32, CPU, augment_seed=seed) for seed in (5, 5, 2)
    )
    images = first(colours())
    assert torch.equal(images, same(colours()))
    assert not torch.equal(images, other(colours()))
    assert not torch.equal(images, first(colours()))  # the next batch is drawn anew
    generator = torch.Generator().manual_seed(5)
    theta = transforms.affine(
        torch.rand((6, transforms.N_UNIFORM), generator=generator), SMALL_PHOTOS
    )
    scaled = transforms.on_device(colours().float() / 255, theta)
    mean, std = (
        torch.tensor(values).view(1, 3, 1, 1) for values in (SMALL_PHOTOS.mean, SMALL_PHOTOS.std)
    )
    assert torch.equal(images, (scaled - mean) / std)


@pytest.mark.parametrize("kind", ["unit", "normalised"])
def test_random_maps_are_the_same_whatever_the_pixels_are(kind: str) -> None:
    """Beyond the image there is black, which is not 0 once the mean has been subtracted."""
    images = pixels().float() / 255 if kind == "unit" else normalised()
    got = ToInput(DIGITS, kind, 28, CPU, augment_seed=3)(images)  # type: ignore[arg-type]
    wanted = ToInput(DIGITS, "uint8", 28, CPU, augment_seed=3)(pixels())
    assert torch.allclose(got, wanted, atol=1e-5)
