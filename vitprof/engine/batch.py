"""The batch: what loaders make, transfers move and the training loop trains on."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor


class BatchTimes(NamedTuple):
    """Times of making one batch, in any thread or process: durations, and moments on the host's monotonic clock."""

    read_s: float
    """Seconds spent reading bytes from storage, summed over the samples. This and the next three are NaN where a stage
    cannot be told apart."""
    decode_s: float
    """Seconds spent decoding and cropping."""
    transform_s: float
    """Seconds spent in transforms and augmentation."""
    collate_s: float
    """Seconds spent putting the samples into one batch."""
    start_s: float
    """When work on the batch began."""
    end_s: float
    """When the batch was complete."""
    worker: float = math.nan
    """Number of the worker process that made it; NaN where none did."""
    queue_depth: float = math.nan
    """Batches that were ready when the training loop asked for this one."""


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
