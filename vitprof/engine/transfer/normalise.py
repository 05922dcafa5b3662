"""Normalises, augments and resizes a batch on the device, before the model sees it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.engine import augment
from vitprof.engine.storage.contract import Pixels


class ToInput:
    """A function from images in any pixel format to the model's input.

    It takes (b, channels, height, width) and returns (b, channels, image_size, image_size) of `dtype`, normalised. The
    arithmetic and its order are those of torchvision's ToTensor and Normalize, so that every strategy feeds the model
    the same bits. With `augment_seed`, random flip, crop and rotation come before that, on pixels scaled to 0..1, where
    black is 0.
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
        self._size = None if image_size == info.image_size else (image_size, image_size)
        self._dtype = dtype
        self._generator: torch.Generator | None = None
        if augment_seed is not None:
            self._generator = torch.Generator(device).manual_seed(augment_seed)

    def __call__(self, images: Tensor) -> Tensor:
        normalised = self._pixels == "normalised"
        if self._pixels == "uint8":
            images = images.float().div_(255)
        if self._generator is not None:
            uniform = torch.rand((len(images), augment.N_UNIFORM), generator=self._generator, device=images.device)
            if normalised:  # back to where black is 0
                images = images * self._std + self._mean
            images = augment.on_device(images, augment.affine(uniform, self._info))
            normalised = False
        if not normalised:
            images = images.sub(self._mean).div_(self._std)
        if self._size is not None:
            images = F.interpolate(images, self._size, mode="bilinear", align_corners=False, antialias=False)
        return images.to(self._dtype)


def as_it_is(images: Tensor) -> Tensor:
    """Returns the images unchanged, for a simulated device whose step includes normalising."""
    return images
