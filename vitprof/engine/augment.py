"""Random flip, crop and rotation as one affine map for each sample: on the device for a whole batch, or on the CPU.

Both draw from the same geometry, so they show the model the same kind of images; only who does the work differs.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.decode.opencv import opencv

N_UNIFORM = 6
"""Random numbers that a sample's map is made from."""

ROTATION_RAD = math.radians(15.0)
"""Largest rotation, as MNIST recipes have it."""
PADDED_CROP_PX = 2
"""A random crop of an image padded by this much: a shift by at most that, for small images shown whole."""
CROP_AREA = (0.35, 1.0)
"""Share of the image that a crop keeps. Narrower than RandomResizedCrop's 0.08: what is cropped here has been cropped
to its centre and scaled to the model's input once already."""
CROP_RATIO = (3 / 4, 4 / 3)
"""Width over height of a crop, as in torchvision's RandomResizedCrop."""


def affine(uniform: Tensor, info: DatasetInfo) -> Tensor:
    """Returns a map for each row of `uniform` (b, N_UNIFORM) in 0..1, from output to input coordinates in -1..1.

    theta (b, 2, 3), as `torch.nn.functional.affine_grid` takes it.
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
    """`images` (b, channels, side, side) float under the maps `theta` (b, 2, 3), black outside; a new tensor."""
    grid = F.affine_grid(theta.to(images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def on_cpu(images: NDArray[np.uint8], theta: Tensor) -> None:
    """The same in place, one image after another: `images` (b, side, side, channels) uint8, contiguous."""
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
    """`n` random numbers in 0..1 that depend on these three alone: whoever makes the sample draws the same."""
    numbers: NDArray[np.float64] = np.random.Generator(np.random.Philox(key=[(seed << 32) | epoch, index])).random(n)
    return numbers
