"""The batch: what loaders make, transfers move and the training loop trains on."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor


class BatchTimes(NamedTuple):
    """How a batch was made, in whichever thread or process: seconds, and moments on the host's monotonic clock."""

    read_s: float
    """Reading bytes from storage, over all samples of the batch; NaN where it cannot be told apart, here and below."""
    decode_s: float
    """Decoding and cropping."""
    transform_s: float
    """Transforms and augmentation."""
    collate_s: float
    """Making one batch of the samples."""
    start_s: float
    """When the making began."""
    end_s: float
    """When the batch was made."""
    worker: float = math.nan
    """Number of the worker process; NaN where none made it."""
    queue_depth: float = math.nan
    """Batches that were ready when the loop asked for this one."""


class Batch(NamedTuple):
    """Some samples of a split. A plain tuple of tensors, so that a DataLoader can pin it and send it."""

    images: Tensor
    """(b, channels, height, width), uint8 as stored or float32; in memory often (b, height, width, channels)."""
    labels: Tensor
    """(b,) int64"""
    unreadable: tuple[str, ...] = ()
    """One line for each sample that was left out because it cannot be read."""
    made: BatchTimes | None = None
    """How it was made, where the loader can tell."""
    decoded: Any = None
    """`devices.Mark` in the stream that trains, behind a loader's own work on the device; None where the images are
    whole when the batch is handed out."""
