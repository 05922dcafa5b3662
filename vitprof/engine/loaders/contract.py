"""What a loader is (`Loader`), the `Batch` that it makes, and the order of an epoch, the same for
every strategy.
"""

import math
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

import torch

from vitprof.config import RunConfig
from vitprof.engine.ranks.group import share
from vitprof.measure.stage_look import LookedBatch
from vitprof.measure.step_columns import BatchTimes

Buffer = Callable[[tuple[int, ...]], torch.Tensor]
"""Returns memory (uint8, of the given shape) for a batch.

The giver of the memory knows when it can be used again."""
BLOCK_SAMPLES = 128
"""Samples of a block in a block shuffle, where the storage has no chunks of its own."""


class Batch(NamedTuple):
    """Some samples of a split.

    A plain tuple of tensors, so that a DataLoader can pin it and send it.
    """

    images: torch.Tensor
    """(b, channels, height, width), uint8 as stored or float32; often channels-last in memory."""
    labels: torch.Tensor
    """(b,) int64"""
    unreadable: tuple[str, ...] = ()
    """One line for each sample that was left out because it cannot be read."""
    made: BatchTimes | None = None
    """Times of making it; None where the loader cannot tell."""
    decoded: Any = None
    """`devices.Mark` in the training stream after the loader's own work on the device.

    None where the images are complete when the batch is handed over."""
    looked: LookedBatch | None = None
    """What its stages used of the cores; None for most batches, which are not looked at."""


class Loader(Protocol):
    """A source of the batches of a split, epoch by epoch."""

    def __len__(self) -> int:
        """Returns the number of batches in an epoch; the last one may be smaller."""

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        """Yields the batches of one epoch: each sample exactly once, in `epoch_order` when
        training, else as stored.

        Closing the iterator ends the epoch early; the next epoch is complete again. A batch stays
        valid until the next but one is requested. Where unreadable samples are skipped a batch has
        fewer samples, or none if none of them could be read.
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
        # A resident storage needs indices on its own device: they are copied there once for each
        # epoch.
        self._device: torch.device = getattr(storage, "device", torch.device("cpu"))

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def batches(self, epoch: int) -> tuple[torch.Tensor, ...]:
        """Returns the indices of each batch, (b,) int64; only the last may be smaller than
        `batch_size`.
        """
        of_all = epoch_order(self._n_all, self._seed, epoch, self._shuffle, self._block)
        order = of_all[self._share].to(self._device)
        return order.split(self.batch_size)  # type: ignore[no-untyped-call, no-any-return]


def epoch_order(
    n: int, seed: int, epoch: int, shuffle: str = "full", block: int = BLOCK_SAMPLES
) -> torch.Tensor:
    """Returns the order of the samples in an epoch, (n,) int64: each exactly once.

    `shuffle` "full" permutes the samples. "block" permutes blocks of `block` consecutive samples
    and keeps the stored order within each, so that samples read together are stored together.
    "none" is the stored order.
    """
    if shuffle == "none":
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    if shuffle == "full":
        return torch.randperm(n, generator=generator)
    # The last block may be a short one.
    n_blocks = math.ceil(n / block)
    starts = torch.randperm(n_blocks, generator=generator) * block
    order = (starts[:, None] + torch.arange(block)).flatten()
    return order[order < n]
