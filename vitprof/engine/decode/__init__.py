"""From encoded images to pixels: which part of an image becomes the sample, and the decoders (`decoders`).

The crops are torchvision's two usual ones, each as one rectangle of the original: so a decoder can resize once,
straight into the batch.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitprof.config.parts import DEPRECATED_DECODERS
from vitprof.errors import ConfigError, DataError
from vitprof.program import install_command

if TYPE_CHECKING:
    from vitprof.engine.decode.decoders import Decoder

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


@cache
def opencv() -> ModuleType:
    """Returns the module cv2, with its own threads switched off. Raises `DataError` if it is missing."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(f"OpenCV is needed here and cannot be loaded ({error}): {install_command('images')}") from error
    # The loader decides on threads: OpenCV's own would multiply with them, and would not survive a fork.
    cv2.setNumThreads(0)
    return cv2


def open_decoder(name: str) -> Decoder:
    """Returns the decoder called `name`, one of `vitprof.config.parts.DECODERS`.

    Raises `ConfigError` for torchvision's decoder if the installed torchvision no longer has it, `DataError` without
    OpenCV.
    """
    from vitprof.engine.decode.decoders import DECODERS  # here, since it imports packages that only image files need

    if name == "torchvision":
        try:
            from torchvision.io import decode_image  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "decoder",
                name,
                f"it is {DEPRECATED_DECODERS[name]}, and the torchvision installed here has none; choose opencv or pil",
            ) from error
    return DECODERS[name]
