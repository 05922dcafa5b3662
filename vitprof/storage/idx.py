"""Samples one by one from MNIST's IDX files, as torchvision's own Dataset gives them.

torchvision reads the whole file into memory when the Dataset is made; what costs time for each sample is the
conversion to a PIL image, ToTensor and Normalize (REFERENCE.md section 1).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import datasets, transforms

from vitprof.catalog import DatasetInfo
from vitprof.storage import Batch, Pixels, Storage


class IdxStorage:
    """`torchvision.datasets.MNIST` with the transforms that every tutorial uses."""

    pixels: Pixels = "normalised"
    device = torch.device("cpu")

    def __init__(self, info: DatasetInfo, root: Path, train: bool) -> None:
        to_input = transforms.Compose([transforms.ToTensor(), transforms.Normalize((info.mean,), (info.std,))])
        self._dataset: Dataset[tuple[Tensor, int | Tensor]] = datasets.MNIST(
            str(root), train=train, transform=to_input, download=False
        )

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def dataset(self) -> Dataset[tuple[Tensor, int | Tensor]]:
        return self._dataset

    def read_batch(self, indices: Tensor) -> Batch:
        raise NotImplementedError("the sample-by-sample baseline has no whole-batch read: that is its point")

    def to(self, device: torch.device) -> Storage:
        raise NotImplementedError("samples that are made one by one cannot be placed on a device; use storage 'memory'")
