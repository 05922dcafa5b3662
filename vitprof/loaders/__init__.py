"""Loaders: who makes batches out of a storage's samples. One file each; `open_loader` finds them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from vitprof.records import RunConfig
from vitprof.storage import Batch, Storage


class Loader(Protocol):
    """Batches of a split, epoch by epoch."""

    def __len__(self) -> int:
        """Batches in an epoch; the last one may be smaller."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of one epoch: each sample exactly once, in `epoch_order` when training, else as stored."""

    def close(self) -> None:
        """End worker processes and threads. The loader is of no use afterwards."""


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """The order of the samples in an epoch, (n,) int64: the same for every strategy with the same seed."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(n, generator=generator)


Opener = Callable[[Storage, RunConfig, bool], Loader]
"""(storage of a split, resolved config, training or evaluating) -> loader."""


def open_loader(name: str, storage: Storage, config: RunConfig, *, train: bool) -> Loader:
    """Start the loader called `name` over `storage`."""
    from vitprof.loaders import batches, dataloader

    openers: dict[str, Opener] = {"dataloader": dataloader.open_dataloader, "batches": batches.BatchReader}
    return openers[name](storage, config, train)
