"""How a batch was made: the times of its stages, and how many others were ready when the loop asked for it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


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


UNKNOWN_TIMES = BatchTimes(*[math.nan] * 8)
"""The times of a loader that cannot tell."""


def n_ready(batches: Any) -> float:
    """Returns the number of batches that a DataLoader's workers have delivered and the loop has not taken yet.

    Those that wait to be pinned count. `batches` is the DataLoader's iterator; PyTorch has no public name for this
    number. NaN without workers, on a PyTorch version with other names, or on a system that cannot count what is in a
    queue (macOS).
    """
    tasks = getattr(batches, "_task_info", None)
    if tasks is None:  # no workers
        return math.nan
    try:
        came_early = sum(len(task) > 1 for task in tasks.values())  # delivered out of order
        queues = {id(queue): queue for queue in (batches._data_queue, batches._worker_result_queue)}
        return float(came_early + sum(queue.qsize() for queue in queues.values()))
    except (AttributeError, NotImplementedError, OSError, TypeError):
        return math.nan
