"""The batch: what loaders make, transfers move and the training loop trains on."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Some samples of a split. A plain tuple of tensors, so that a DataLoader can pin it and send it."""

    images: Tensor
    """(b, channels, height, width), uint8 as stored or float32; in memory often (b, height, width, channels)."""
    labels: Tensor
    """(b,) int64"""
    unreadable: tuple[str, ...] = ()
    """One line for each sample that was left out because it cannot be read."""
