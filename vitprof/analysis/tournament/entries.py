"""What a tournament knows of its trials: a trial is a setting, its outcomes are the runs of it, one for each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitprof.records import RunSummary

Floats = NDArray[np.float64]
Status = Literal["waiting", "running", "done", "failed", "refused", "cut", "stopped"]
OUT: tuple[Status, ...] = ("failed", "refused")
"""A trial with this status stays in the table with its reason, and is not ranked: nobody could use the setting."""


@dataclass(frozen=True)
class Outcome:
    """One run of a trial."""

    round: int
    """Which repeat, from 1. Runs of one round lie next to each other in time, so they are compared in pairs."""
    run_id: int
    status: Status
    blocks_per_s: Floats
    """samples/s of blocks of neighbouring steady steps in order (`block_rates`), (n,) float64; empty if none."""
    summary: RunSummary | None
    """None while it has not ended."""


@dataclass(frozen=True)
class Entry:
    """One trial: a setting with its outcomes."""

    key: str
    """strategy/b<batch>/w<workers or ->/<page cache>, see `trial_key`."""
    strategy: str
    batch_size: int
    workers: int | None
    """None where the loader has none."""
    page_cache: str
    """as-is, warm or cold."""
    outcomes: tuple[Outcome, ...]
    status: Status
    """Of the trial as a whole."""
    reason: str
    """Why it was refused, failed or was cut short; else empty."""
    prepare_s: float
    """Seconds to build its storage from the data set; 0 where none is needed, NaN where not known."""
    disk_bytes: float
    """Room of its storage on disk; NaN where not known."""
    ram_bytes: float
    """RAM disk and memory of the samples that it keeps; NaN where not known."""


def trial_key(strategy: str, batch_size: int, workers: int | None, page_cache: str) -> str:
    """The key of a trial: strategy/b<batch>/w<workers or ->/<page cache>."""
    return f"{strategy}/b{batch_size}/w{'-' if workers is None else workers}/{page_cache}"


def in_words(entry: Entry, *, batch: bool = True) -> str:
    """The setting as a person reads it: "pt-memory, batch 512, 2 workers, cold cache"; without the batch if asked."""
    parts = [entry.strategy]
    if batch:
        parts.append(f"batch {entry.batch_size:,}")
    if entry.workers is not None:
        parts.append("1 worker" if entry.workers == 1 else f"{entry.workers} workers")
    if entry.page_cache != "as-is":
        parts.append(f"{entry.page_cache} cache")
    return ", ".join(parts)
