"""From an image to the model's input: crops, random flip, crop and rotation as one affine map, and
normalisation.

The crops are torchvision's two usual ones, each as one rectangle of the original, so that a decoder
can resize once, straight into the batch. Maps are applied on the device to a whole batch, or on the
CPU, with the same geometry.
"""

import math
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine.storage.contract import Pixels
from vitprof.errors import DataError
from vitprof.program import install_command

N_UNIFORM = 6
"""Random numbers that the map of one sample takes."""

ROTATION_RAD = math.radians(15.0)
"""Largest rotation, as in common MNIST recipes."""
PADDED_CROP_PX = 2
"""Padding before a random crop, so a shift by at most this much: for small images, which are shown
whole."""
CROP_AREA = (0.35, 1.0)
"""Range of the share of the image's area that a crop keeps.

Its lower end is above RandomResizedCrop's 0.08 because the image has already been cropped to its
centre and scaled to the model's input."""


def affine(uniform: torch.Tensor, info: DatasetInfo) -> torch.Tensor:
    """Returns one map for each row of `uniform` (b, N_UNIFORM) in 0..1, from output to input
    coordinates in -1..1.

    The result is the theta of `torch.nn.functional.affine_grid`: (b, 2, 3), in the dtype of
    `uniform`.
    """
    u = uniform.unbind(1)
    angle = (2 * u[0] - 1) * ROTATION_RAD
    if info.kind == "jpeg":
        area = CROP_AREA[0] + u[1] * (CROP_AREA[1] - CROP_AREA[0])
        low, high = _LOG_ASPECT_RATIO
        ratio = torch.exp(low + u[2] * (high - low))
        width = (area * ratio).sqrt().clamp(max=1)
        height = (area / ratio).sqrt().clamp(max=1)
        x = (2 * u[3] - 1) * (1 - width)
        y = (2 * u[4] - 1) * (1 - height)
    else:
        width = height = torch.ones_like(u[1])
        reach = 2 * PADDED_CROP_PX / info.image_size
        x = (2 * u[3] - 1) * reach
        y = (2 * u[4] - 1) * reach
    if info.flips:
        width = torch.where(u[5] < 0.5, -width, width)
    cos = angle.cos()
    sin = angle.sin()
    rows = (width * cos, -height * sin, x), (width * sin, height * cos, y)
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def on_device(images: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Returns a new tensor: `images` (b, channels, side, side) float under the maps `theta` (b, 2,
    3), zero outside.
    """
    grid = F.affine_grid(theta.to(images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def on_cpu(images: NDArray[np.uint8], theta: torch.Tensor) -> None:
    """Does the same in place, one image after another: `images` (b, side, side, channels) uint8,
    contiguous.
    """
    cv2 = opencv()
    side = images.shape[1]
    for image, matrix in zip(images, in_pixels(theta, side), strict=True):
        moved = cv2.warpAffine(
            image, matrix, (side, side), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        )
        image[:] = moved.reshape(image.shape)


def in_pixels(theta: torch.Tensor, side: int) -> NDArray[np.float64]:
    """Returns the maps in pixel coordinates, (b, 2, 3): pixel x has its centre at (2 x + 1) / side
    - 1.
    """
    matrix: NDArray[np.float64] = theta.double().numpy().copy()
    linear = matrix[:, :, :2]
    matrix[:, :, 2] = (matrix[:, :, 2] + 1) * side / 2 - 0.5 + linear.sum(axis=2) * (0.5 - side / 2)
    return matrix


def sample_uniform(seed: int, epoch: int, index: int, n: int) -> NDArray[np.float64]:
    """Returns `n` random numbers in 0..1 that depend only on `seed`, `epoch` and `index`.

    Every thread or process that makes the sample therefore draws the same.
    """
    stream = np.random.Philox(key=[(seed << 32) | epoch, index])
    numbers: NDArray[np.float64] = np.random.Generator(stream).random(n)
    return numbers


AREA_SHARE = (0.08, 1.0)
"""Range of a random crop's share of the area: torchvision's default for RandomResizedCrop."""
ASPECT_RATIO = (3 / 4, 4 / 3)
"""Range of a random crop's width over its height: also torchvision's default."""
FIT_TRIES = 10
"""How often torchvision draws area and ratio at most until the crop fits."""
N_CROP_UNIFORM = 2 * FIT_TRIES + 3
"""Uniform numbers that `random_crop` takes: an area and a ratio for each try, then top, left and
flip."""

_LOG_ASPECT_RATIO = (math.log(ASPECT_RATIO[0]), math.log(ASPECT_RATIO[1]))


class Crop(NamedTuple):
    """A rectangle of an image in whole pixels, to be resized to the sample's size, then mirrored if
    `flip`.
    """

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


def centre_crop(height: int, width: int, size: int) -> Crop:
    """Returns the crop of torchvision's Resize(size * 256 // 224) and CenterCrop(size) for a height
    x width image.

    It is the square in the middle whose side is 224/256 of the shorter side, rounded to pixels of
    the original: up to half a pixel off torchvision's. An image of size x size is taken whole: it
    is a sample already.
    """
    if height == width == size:
        return Crop(0, 0, height, width)
    resized = size * 256 // 224
    short = min(height, width)
    side = max(1, round(short * size / resized))

    def first(length: int) -> int:
        # CenterCrop rounds to a pixel of the resized image, whose longer side Resize has rounded
        # down.
        long = resized * length // short
        margin = round((long - size) / 2)
        in_the_original = round(margin * length / long)
        return min(max(0, in_the_original), length - side)

    return Crop(first(height), first(width), side, side)


def random_crop(height: int, width: int, u: NDArray[np.float64], *, flips: bool = True) -> Crop:
    """Returns the crop of torchvision's RandomResizedCrop and, if `flips`, of RandomHorizontalFlip.

    It is of a height x width image. `u` (N_CROP_UNIFORM,) holds uniform numbers in [0, 1) and
    decides everything.
    """
    # torchvision.RandomResizedCrop.get_params, with u in place of torch's generator
    numbers: list[float] = u.tolist()
    area = height * width
    flip = flips and numbers[-1] < 0.5
    least_share, most_share = AREA_SHARE
    least_log, most_log = _LOG_ASPECT_RATIO
    for i in range(0, 2 * FIT_TRIES, 2):
        target = area * (least_share + (most_share - least_share) * numbers[i])
        ratio = math.exp(least_log + (most_log - least_log) * numbers[i + 1])
        w = round(math.sqrt(target * ratio))
        h = round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(numbers[-3] * (height - h + 1))
            left = int(numbers[-2] * (width - w + 1))
            return Crop(top, left, h, w, flip)
    # Nothing fitted: take as much of the middle as the ratio allows.
    h = min(height, max(1, round(width / ASPECT_RATIO[0])))
    w = min(width, max(1, round(height * ASPECT_RATIO[1])))
    return Crop((height - h) // 2, (width - w) // 2, h, w, flip)


@cache
def opencv() -> ModuleType:
    """Returns the module cv2, with its own threads switched off.

    Raises `DataError` if it is missing.
    """
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f"OpenCV is needed here and cannot be loaded ({error}): {install_command('images')}"
        ) from error
    # The loader decides on threads: OpenCV's own would multiply with them, and would not survive a
    # fork.
    cv2.setNumThreads(0)
    return cv2


class ToInput:
    """A function from images in any pixel format to the model's input.

    It takes (b, channels, height, width) and returns (b, channels, image_size, image_size) of
    `dtype`, normalised. The arithmetic and its order are those of torchvision's ToTensor and
    Normalize, so that every strategy feeds the model the same bits. With `augment_seed`, random
    flip, crop and rotation come before that, on pixels scaled to 0..1, where black is 0.
    """

    def __init__(
        self,
        info: DatasetInfo,
        pixels: Pixels,
        image_size: int,
        device: torch.device,
        *,
        augment_seed: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (1, info.channels, 1, 1)
        self._mean = torch.tensor(info.mean, device=device).view(shape)
        self._std = torch.tensor(info.std, device=device).view(shape)
        self._info = info
        self._pixels = pixels
        self._size: tuple[int, int] | None = None
        if image_size != info.image_size:
            self._size = (image_size, image_size)
        self._dtype = dtype
        self._generator: torch.Generator | None = None
        if augment_seed is not None:
            self._generator = torch.Generator(device).manual_seed(augment_seed)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        normalised = self._pixels == "normalised"
        if self._pixels == "uint8":
            images = images.float().div_(255)
        if self._generator is not None:
            uniform = torch.rand(
                (len(images), N_UNIFORM), generator=self._generator, device=images.device
            )
            if normalised:
                # Back to where black is 0: what the map takes from outside of the image is 0.
                images = images * self._std + self._mean
            images = on_device(images, affine(uniform, self._info))
            normalised = False
        if not normalised:
            images = images.sub(self._mean).div_(self._std)
        if self._size is not None:
            images = F.interpolate(
                images, self._size, mode="bilinear", align_corners=False, antialias=False
            )
        return images.to(self._dtype)


def as_it_is(images: torch.Tensor) -> torch.Tensor:
    """Returns the images unchanged, for a simulated device whose step includes normalising."""
    return images
