"""The batch: what loaders make, transfers move and the training loop trains on."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from vitprof.measure.batch_times import BatchTimes


class Batch(NamedTuple):
    """Some samples of a split. A plain tuple of tensors, so that a DataLoader can pin it and send it."""

    images: Tensor
    """(b, channels, height, width), uint8 as stored or float32; often channels-last in memory."""
    labels: Tensor
    """(b,) int64"""
    unreadable: tuple[str, ...] = ()
    """One line for each sample that was left out because it cannot be read."""
    made: BatchTimes | None = None
    """Times of making it; None where the loader cannot tell."""
    decoded: Any = None
    """`devices.Mark` in the training stream after the loader's own work on the device; None where the images are
    complete when the batch is handed over."""
