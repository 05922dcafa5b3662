"""Batches that lie ready in a DataLoader."""

from __future__ import annotations

import math
from typing import Any


def n_ready(batches: Any) -> float:
    """Returns batches that the workers of a DataLoader's iterator have delivered and nobody has taken yet.

    Those that wait to be pinned count. PyTorch has no public name for it: NaN where a version of it, or a system that
    cannot count what is in a queue (macOS), does not tell.
    """
    tasks = getattr(batches, "_task_info", None)
    if tasks is None:  # no workers
        return math.nan
    try:
        came_early = sum(len(task) > 1 for task in tasks.values())  # before the one whose turn it is
        queues = {id(queue): queue for queue in (batches._data_queue, batches._worker_result_queue)}
        return float(came_early + sum(queue.qsize() for queue in queues.values()))
    except (AttributeError, NotImplementedError, OSError, TypeError):
        return math.nan
