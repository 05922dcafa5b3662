"""vitprof.engine.decode: torchvision's two crops as rectangles."""

import itertools

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from vitprof.engine.decode import AREA_SHARE, ASPECT_RATIO, N_UNIFORM, Crop, centre_crop, random_crop


def test_a_sample_of_the_right_size_is_taken_whole() -> None:
    assert centre_crop(28, 28, 28) == Crop(0, 0, 28, 28, False)
    assert centre_crop(224, 224, 224) == Crop(0, 0, 224, 224)


@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (333, 500), (256, 256), (1000, 1000), (500, 9000)]
)
def test_centre_crop_is_torchvisions(height: int, width: int) -> None:
    """The position of each pixel, carried through torchvision's transforms as colour."""
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    positions = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])(torch.stack([rows, columns]))
    crop = centre_crop(height, width, 224)
    assert crop.height == crop.width
    step = crop.height / 224
    for positions_of_axis, first in ((positions[0, :, 0], crop.top), (positions[1, 0, :], crop.left)):
        ours = first - 0.5 + step * (torch.arange(224) + 0.5)
        # Half a pixel for the corner and half for the side, which are whole pixels; at the border torchvision's
        # filter reaches beyond the crop. A little for torchvision's stretching to whole pixels.
        assert (positions_of_axis - ours).abs().max() < 1.1


def test_centre_crop_of_tiny_images() -> None:
    for height, width in itertools.product((1, 2, 3), (1, 2, 500)):
        inside(centre_crop(height, width, 224), height, width)


def inside(crop: Crop, height: int, width: int) -> None:
    assert 0 <= crop.top <= crop.top + crop.height <= height
    assert 0 <= crop.left <= crop.left + crop.width <= width
    assert crop.height > 0
    assert crop.width > 0


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (1, 1), (2, 900), (900, 2), (28, 28), (60, 100)])
def test_random_crops_lie_inside(height: int, width: int) -> None:
    corners = [np.zeros(N_UNIFORM), np.full(N_UNIFORM, np.nextafter(1.0, 0))]
    for u in (*corners, *np.random.default_rng(1).random((500, N_UNIFORM))):
        inside(random_crop(height, width, u), height, width)


def test_random_crops_are_distributed_as_torchvisions() -> None:
    n, height, width = 4000, 375, 500
    ours = [random_crop(height, width, u) for u in np.random.default_rng(2).random((n, N_UNIFORM))]
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


def test_same_numbers_same_crop() -> None:
    u = np.random.default_rng(3).random(N_UNIFORM)
    assert random_crop(375, 500, u) == random_crop(375, 500, u.copy())
    assert random_crop(375, 500, u) != random_crop(375, 500, 1 - u)
