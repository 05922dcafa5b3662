"""A whole split as tensors in memory: uint8 for whole-batch reads, float for the usual TensorDataset form."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from vitprof.catalog import DatasetInfo
from vitprof.data import read_split
from vitprof.storage import Batch, Pixels, Storage


class MemoryStorage:
    """Images (n, c, h, w) and labels (n,) int64, contiguous on one device."""

    def __init__(self, images: Tensor, labels: Tensor, pixels: Pixels) -> None:
        self.pixels = pixels
        self.device = images.device
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def dataset(self) -> Dataset[tuple[Tensor, int | Tensor]]:
        return TensorDataset(self._images, self._labels)  # type: ignore[return-value]  # two tensors make pairs

    def read_batch(self, indices: Tensor) -> Batch:
        return self._images.index_select(0, indices), self._labels.index_select(0, indices)

    def to(self, device: torch.device) -> Storage:
        return MemoryStorage(self._images.to(device), self._labels.to(device), self.pixels)


def open_uint8(info: DatasetInfo, root: Path, train: bool) -> MemoryStorage:
    """The split as stored: one byte for each pixel."""
    images, labels = read_split(root, train)
    return MemoryStorage(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels), "uint8")


def open_float(info: DatasetInfo, root: Path, train: bool) -> MemoryStorage:
    """The split as one float32 tensor scaled to 0..1, as the article keeps it."""
    stored = open_uint8(info, root, train)
    return MemoryStorage(stored._images.float().div_(255), stored._labels, "unit")
