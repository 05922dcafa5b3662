"""The order of an epoch: the same for every strategy with the same seed and the same kind of shuffle."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_SAMPLES = 128
"""Samples of a block in a block shuffle, where the storage has no chunks of its own."""


def epoch_order(n: int, seed: int, epoch: int, shuffle: str = "full", block: int = BLOCK_SAMPLES) -> Tensor:
    """Returns the order of the samples in an epoch, (n,) int64: each exactly once.

    `shuffle` "full" permutes the samples. "block" permutes blocks of `block` consecutive samples and keeps the stored
    order within each, so that samples read together are stored together. "none" is the stored order.
    """
    if shuffle == "none":
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    if shuffle == "full":
        return torch.randperm(n, generator=generator)
    starts = torch.randperm((n + block - 1) // block, generator=generator) * block
    order = (starts[:, None] + torch.arange(block)).flatten()
    return order[order < n]
