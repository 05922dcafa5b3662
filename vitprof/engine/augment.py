"""Random flip, crop and rotation as one affine map for each sample: on the device for a whole batch, or on the CPU.

Both draw from the same geometry, so the model sees the same kind of images; only where the work is done differs.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.decode import opencv

N_UNIFORM = 6
"""Random numbers that the map of one sample takes."""

ROTATION_RAD = math.radians(15.0)
"""Largest rotation, as in common MNIST recipes."""
PADDED_CROP_PX = 2
"""Padding before a random crop, so a shift by at most this much: for small images, which are shown whole."""
CROP_AREA = (0.35, 1.0)
"""Range of the share of the image's area that a crop keeps. Its lower end is above RandomResizedCrop's 0.08 because
the image has already been cropped to its centre and scaled to the model's input."""
CROP_RATIO = (3 / 4, 4 / 3)
"""Range of a crop's width over its height, as in torchvision's RandomResizedCrop."""


def affine(uniform: Tensor, info: DatasetInfo) -> Tensor:
    """Returns one map for each row of `uniform` (b, N_UNIFORM) in 0..1, from output to input coordinates in -1..1.

    The result is the theta of `torch.nn.functional.affine_grid`: (b, 2, 3), in the dtype of `uniform`.
    """
    u = uniform.unbind(1)
    angle = (2 * u[0] - 1) * ROTATION_RAD
    if info.kind == "jpeg":
        area = CROP_AREA[0] + u[1] * (CROP_AREA[1] - CROP_AREA[0])
        low, high = (math.log(ratio) for ratio in CROP_RATIO)
        ratio = torch.exp(low + u[2] * (high - low))
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        x, y = (2 * u[3] - 1) * (1 - width), (2 * u[4] - 1) * (1 - height)
    else:
        width = height = torch.ones_like(u[1])
        reach = 2 * PADDED_CROP_PX / info.image_size
        x, y = (2 * u[3] - 1) * reach, (2 * u[4] - 1) * reach
    if info.flips:
        width = torch.where(u[5] < 0.5, -width, width)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack(
        (torch.stack((width * cos, -height * sin, x), 1), torch.stack((width * sin, height * cos, y), 1)), 1
    )


def on_device(images: Tensor, theta: Tensor) -> Tensor:
    """Returns a new tensor: `images` (b, channels, side, side) float under the maps `theta` (b, 2, 3), zero outside."""
    grid = F.affine_grid(theta.to(images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def on_cpu(images: NDArray[np.uint8], theta: Tensor) -> None:
    """Does the same in place, one image after another: `images` (b, side, side, channels) uint8, contiguous."""
    cv2, side = opencv(), images.shape[1]
    for image, matrix in zip(images, in_pixels(theta, side), strict=True):
        moved = cv2.warpAffine(image, matrix, (side, side), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
        image[:] = moved.reshape(image.shape)


def in_pixels(theta: Tensor, side: int) -> NDArray[np.float64]:
    """Returns the maps in pixel coordinates, (b, 2, 3): pixel x has its centre at (2 x + 1) / side - 1."""
    matrix: NDArray[np.float64] = theta.double().numpy().copy()
    linear = matrix[:, :, :2]
    matrix[:, :, 2] = (matrix[:, :, 2] + 1) * side / 2 - 0.5 + linear.sum(axis=2) * (0.5 - side / 2)
    return matrix


def sample_uniform(seed: int, epoch: int, index: int, n: int) -> NDArray[np.float64]:
    """Returns `n` random numbers in 0..1 that depend only on `seed`, `epoch` and `index`.

    Every thread or process that makes the sample therefore draws the same.
    """
    numbers: NDArray[np.float64] = np.random.Generator(np.random.Philox(key=[(seed << 32) | epoch, index])).random(n)
    return numbers
