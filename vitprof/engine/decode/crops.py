"""The part of an image that becomes the sample: torchvision's two usual crops, each as one rectangle of the original.

With a single rectangle, a decoder can resize once, straight into the batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AREA_SHARE = (0.08, 1.0)
"""Range of a random crop's share of the area: torchvision's default for RandomResizedCrop."""
ASPECT_RATIO = (3 / 4, 4 / 3)
"""Range of a random crop's width over its height: also torchvision's default."""
FIT_TRIES = 10
"""How often torchvision draws area and ratio at most until the crop fits."""
N_UNIFORM = 2 * FIT_TRIES + 3
"""Uniform numbers that `random_crop` takes: an area and a ratio for each try, then top, left and flip."""

_LOG_ASPECT_RATIO = (math.log(ASPECT_RATIO[0]), math.log(ASPECT_RATIO[1]))


class Crop(NamedTuple):
    """A rectangle of an image in whole pixels, to be resized to the sample's size, then mirrored if `flip`."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


def centre_crop(height: int, width: int, size: int) -> Crop:
    """Returns the crop of torchvision's Resize(size * 256 // 224) and CenterCrop(size) for a height x width image.

    It is the square in the middle whose side is 224/256 of the shorter side, rounded to pixels of the original: up to
    half a pixel off torchvision's. An image of size x size is taken whole: it is a sample already.
    """
    if height == width == size:
        return Crop(0, 0, height, width)
    resized, short = size * 256 // 224, min(height, width)
    side = max(1, round(short * size / resized))

    def first(length: int) -> int:
        # CenterCrop rounds to a pixel of the resized image, whose longer side Resize has rounded down.
        long = resized * length // short
        return min(max(0, round(round((long - size) / 2) * length / long)), length - side)

    return Crop(first(height), first(width), side, side)


def random_crop(height: int, width: int, u: NDArray[np.float64]) -> Crop:
    """Returns the crop of torchvision's RandomResizedCrop and RandomHorizontalFlip for a height x width image.

    `u` (N_UNIFORM,) holds uniform numbers in [0, 1) and decides everything. If images must not be mirrored, use
    `crop._replace(flip=False)`.
    """
    # torchvision.transforms.RandomResizedCrop.get_params, with u in place of torch's generator
    numbers: list[float] = u.tolist()
    area = height * width
    for i in range(0, 2 * FIT_TRIES, 2):
        target = area * (AREA_SHARE[0] + (AREA_SHARE[1] - AREA_SHARE[0]) * numbers[i])
        ratio = math.exp(_LOG_ASPECT_RATIO[0] + (_LOG_ASPECT_RATIO[1] - _LOG_ASPECT_RATIO[0]) * numbers[i + 1])
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(numbers[-3] * (height - h + 1)), int(numbers[-2] * (width - w + 1))
            return Crop(top, left, h, w, numbers[-1] < 0.5)
    # Nothing fitted: take as much of the middle as the ratio allows.
    h = min(height, max(1, round(width / ASPECT_RATIO[0])))
    w = min(width, max(1, round(height * ASPECT_RATIO[1])))
    return Crop((height - h) // 2, (width - w) // 2, h, w, numbers[-1] < 0.5)
