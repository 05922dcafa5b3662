"""Which part of an image becomes the sample: torchvision's two usual crops, each as one rectangle of the original.

One rectangle, because a decoder that knows it can resize once, straight into the batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AREA_SHARE = (0.08, 1.0)
"""Share of the area a random crop may take: torchvision's default for RandomResizedCrop."""
ASPECT_RATIO = (3 / 4, 4 / 3)
"""Width over height a random crop may have: the same."""
FIT_TRIES = 10
"""How often torchvision draws area and ratio until the crop fits."""
N_UNIFORM = 2 * FIT_TRIES + 3
"""Uniform numbers that `random_crop` takes: an area and a ratio for each try, top, left, flip."""

_LOG_ASPECT_RATIO = (math.log(ASPECT_RATIO[0]), math.log(ASPECT_RATIO[1]))


class Crop(NamedTuple):
    """A rectangle of an image in whole pixels, to be resized to the sample's size, then mirrored if `flip`."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


def centre_crop(height: int, width: int, size: int) -> Crop:
    """torchvision's Resize(size * 256 // 224) and CenterCrop(size) of a height x width image.

    The square in the middle whose side is 224/256 of the shorter side, to the nearest pixel of the original: up to
    half a pixel from where torchvision has it. An image of size x size is taken whole: it is a sample already.
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
    """torchvision's RandomResizedCrop and RandomHorizontalFlip of a height x width image.

    `u` (N_UNIFORM,) holds uniform numbers in [0, 1) and decides everything. A caller whose images must not be mirrored
    takes `crop._replace(flip=False)`.
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
    # Nothing fitted: as much of the middle as the ratio allows.
    h = min(height, max(1, round(width / ASPECT_RATIO[0])))
    w = min(width, max(1, round(height * ASPECT_RATIO[1])))
    return Crop((height - h) // 2, (width - w) // 2, h, w, numbers[-1] < 0.5)
