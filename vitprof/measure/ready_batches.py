"""Counts the batches that are ready in a DataLoader."""

from __future__ import annotations

import math
from typing import Any


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
