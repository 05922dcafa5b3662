"""What happens to a batch on the device before the model sees it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vitprof.catalog import DatasetInfo
from vitprof.storage import Pixels


class ToInput:
    """Images in any pixel format -> float32 (b, channels, image_size, image_size), normalised.

    The arithmetic and its order are those of torchvision's ToTensor and Normalize, so that every strategy feeds the
    model the same bits.
    """

    def __init__(self, info: DatasetInfo, pixels: Pixels, image_size: int) -> None:
        self._mean = info.mean
        self._std = info.std
        self._pixels = pixels
        self._size = None if image_size == info.image_size else (image_size, image_size)

    def __call__(self, images: Tensor) -> Tensor:
        if self._pixels == "uint8":
            images = images.float().div_(255).sub_(self._mean).div_(self._std)
        elif self._pixels == "unit":
            images = images.sub(self._mean).div_(self._std)
        if self._size is not None:
            images = F.interpolate(images, self._size, mode="bilinear", align_corners=False, antialias=False)
        return images
