"""What a loader is (`Loader`), the `Batch` that it makes, and the order of an epoch, the same for every strategy."""

import math
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

import torch

from vitprof.config import RunConfig
from vitprof.engine.ranks.group import share
from vitprof.measure.step_columns import BatchTimes

Buffer = Callable[[tuple[int, ...]], torch.Tensor]
"""Returns memory (uint8, of the given shape) for a batch. The giver of the memory knows when it can be used again."""
BLOCK_SAMPLES = 128
"""Samples of a block in a block shuffle, where the storage has no chunks of its own."""


class Batch(NamedTuple):
    """Some samples of a split. A plain tuple of tensors, so that a DataLoader can pin it and send it."""

    images: torch.Tensor
    """(b, channels, height, width), uint8 as stored or float32; often channels-last in memory."""
    labels: torch.Tensor
    """(b,) int64"""
    unreadable: tuple[str, ...] = ()
    """One line for each sample that was left out because it cannot be read."""
    made: BatchTimes | None = None
    """Times of making it; None where the loader cannot tell."""
    decoded: Any = None
    """`devices.Mark` in the training stream after the loader's own work on the device; None where there is none."""


class Loader(Protocol):
    """A source of the batches of a split, epoch by epoch."""

    def __len__(self) -> int:
        """Returns the number of batches in an epoch; the last one may be smaller."""

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        """Yields the batches of one epoch: each sample exactly once, in `epoch_order` when training, else as stored.
        Closing the iterator ends the epoch early. A batch is valid until the next but one is requested.
        """

    def close(self) -> None:
        """Ends worker processes and threads. The loader cannot be used afterwards."""


class Schedule:
    """The order of an epoch, of it this rank's part, cut into batches."""

    def __init__(self, storage: Any, config: RunConfig, *, train: bool) -> None:
        self._n_all = len(storage)
        self._share = share(self._n_all, train=train)
        self.n = len(range(self._n_all)[self._share])
        self.batch_size = config.batch_size
        self._seed = config.seed
        self._shuffle = (config.shuffle or "full") if train else "none"
        self._block = getattr(storage, "block", BLOCK_SAMPLES)
        # A resident storage needs indices on its own device: they are copied there once for each epoch.
        self._device: torch.device = getattr(storage, "device", torch.device("cpu"))

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def batches(self, epoch: int) -> tuple[torch.Tensor, ...]:
        """Returns the indices of each batch, (b,) int64; only the last may be smaller than `batch_size`."""
        order = epoch_order(self._n_all, self._seed, epoch, self._shuffle, self._block)[
            self._share
        ].to(self._device)
        return order.split(self.batch_size)  # type: ignore[no-untyped-call, no-any-return]


def epoch_order(
    n: int, seed: int, epoch: int, shuffle: str = "full", block: int = BLOCK_SAMPLES
) -> torch.Tensor:
    """Returns the order of the samples in an epoch, (n,) int64. `shuffle`: "full" permutes samples; "block" permutes
    blocks of `block` consecutive ones, which are stored together; "none" is the stored order.
    """
    if shuffle == "none":
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    if shuffle == "full":
        return torch.randperm(n, generator=generator)
    starts = torch.randperm((n + block - 1) // block, generator=generator) * block
    order = (starts[:, None] + torch.arange(block)).flatten()
    return order[order < n]
