"""What a batch of a watched script takes to cross from a worker to the process that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitprof.config import RunConfig
from vitprof.config.own_script import DEFAULT_PREFETCH

BY_DESCRIPTOR = "file_descriptor"
"""PyTorch's sharing strategy that keeps a descriptor open for each segment of shared memory."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The descriptors that batches hold open on their way from the workers."""

    of_batch: int
    """Of one batch: one for each segment of shared memory."""
    most: int
    """That batches which are ready can hold open at once in one process."""
    limit: int
    """Descriptors that the process may have open."""
    batches: int
    """The batches that hold them."""
    in_worker: bool
    """Whether that process is a worker, and not the one that trains."""

    @property
    def frac(self) -> float:
        """Returns the share of the limit that these batches can hold open."""
        return self.most / self.limit


def descriptors_of(facts: Mapping[str, Any], config: RunConfig) -> Descriptors | None:
    """Returns the descriptors that a run's batches hold open; None where they need none, or that is not known.

    The process that trains has all batches but the next one where that comes last: it was seen to hold 100
    descriptors for 10 of 12 batches of 10 segments (4 workers, prefetch_factor 3, the first sample slow),
    and each of the workers 30 for its 3. A thread that pins copies one batch after the other, and those
    hold none any more: then a worker has the most.
    """
    of_batch = facts.get("handed_over") or {}
    storages = int(of_batch.get("storages") or 0)
    limit = int(of_batch.get("descriptor_limit") or 0)
    workers = config.workers or 0
    if of_batch.get("sharing") != BY_DESCRIPTOR or not (storages and limit and workers):
        return None
    watched = facts.get("watched") or {}
    is_pinned = bool(watched.get("pin_memory")) and str(facts.get("device")).startswith("cuda")
    batches = int(watched.get("prefetch_factor") or DEFAULT_PREFETCH)
    if not is_pinned:
        batches *= workers
    return Descriptors(storages, batches * storages, limit, batches, in_worker=is_pinned)
