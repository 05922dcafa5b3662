"""Storages: how samples are kept and read. One file each; `STORAGES` names them for the strategies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitprof.catalog import DatasetInfo

Batch = tuple[Tensor, Tensor]
"""Images (b, channels, height, width) in the storage's pixel format, labels (b,) int64."""

Pixels = Literal["uint8", "unit", "normalised"]
"""uint8 as stored; float32 scaled to 0..1; float32 with mean subtracted and divided by the standard deviation."""


class Storage(Protocol):
    """One split of a data set, ready to be read. At least one of `dataset` and `read_batch` works."""

    pixels: Pixels
    device: torch.device
    """Where the samples lie, and where `read_batch` wants its indices."""

    def __len__(self) -> int:
        """Number of samples."""

    def dataset(self) -> Dataset[tuple[Tensor, int | Tensor]]:
        """The samples one by one, for a PyTorch DataLoader."""

    def read_batch(self, indices: Tensor) -> Batch:
        """The samples at `indices` (int64, on the storage's device) as one batch."""

    def to(self, device: torch.device) -> Storage:
        """The same samples in the memory of `device`."""


Opener = Callable[[DatasetInfo, Path, bool], Storage]
"""(facts of the data set, its root directory, train split or not) -> storage."""


def open_storage(name: str, info: DatasetInfo, root: Path, *, train: bool) -> Storage:
    """Open one split of the data set under `root` in the storage called `name`. Raises `DataError`."""
    from vitprof.storage import idx, memory

    openers: dict[str, Opener] = {
        "idx": idx.IdxStorage,
        "memory": memory.open_uint8,
        "memory-float": memory.open_float,
    }
    return openers[name](info, root, train)
