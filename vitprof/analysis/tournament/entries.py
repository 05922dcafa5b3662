"""What a tournament knows of its trials: a trial is a setting, its outcomes are the runs of it, one for each round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitprof.analysis.arrays import Floats
from vitprof.config.own_script_words import is_own_key, own_key_in_words
from vitprof.config.strategies import STRATEGIES
from vitprof.records import RunSummary

Status = Literal["waiting", "running", "done", "failed", "refused", "cut", "stopped"]
OUT_OF_THE_RACE: tuple[Status, ...] = ("failed", "refused")
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
    others_cores: float = math.nan
    """Cores that other programs took in its steady state, on average (`analysis.timing.others_cpu`); NaN: not known."""


@dataclass(frozen=True)
class Entry:
    """One trial: a setting with its outcomes."""

    key: str
    """strategy/b<batch>/w<workers or ->/<page cache>, see `trial_key`; of a user's own script
    `config.own_script_trials.OwnSetting.key`."""
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
    shuffle: str = "full"
    """Order of an epoch: full, block or none (`RunConfig.shuffle`)."""
    n_made: int = 0
    """All of its runs in the store: also those that failed, were stopped or are going on."""
    throttled: bool = False
    """Whether it reads from the imitated slow drive, or is staged from it."""
    losses: str = ""
    """What it does to the losses of a user's own script (`analysis.tournament.losses`); "" for nothing."""


THROTTLED = ("slow-drive", "staged")
"""Locations (`parts.LOCATIONS`) that read from the imitated slow drive: wherever they appear it is said."""


def trial_key(strategy: str, batch_size: int, workers: int | None, page_cache: str) -> str:
    """Returns the key of a trial: strategy/b<batch>/w<workers or ->/<page cache>."""
    return f"{strategy}/b{batch_size}/w{'-' if workers is None else workers}/{page_cache}"


def setting_in_words(entry: Entry, *, batch: bool = True) -> str:
    """Returns the setting as a person reads it: "pt-memory, batch 512, 2 workers, cold cache"; without the batch if
    asked.
    """
    if is_own_key(entry.key):
        return own_key_in_words(entry.key)
    batch_size = entry.batch_size if batch else None
    return _joined(entry.strategy, batch_size, entry.workers, entry.page_cache, throttled=entry.throttled)


def key_in_words(key: str) -> str:
    """Returns the setting that a trial's key stands for, as `setting_in_words` has it; the key itself if it is none."""
    if is_own_key(key):
        return own_key_in_words(key)
    strategy, *rest = key.split("/")
    try:
        batch, workers, cache = rest
        return _joined(strategy, int(batch[1:]), None if workers == "w-" else int(workers[1:]), cache)
    except ValueError:
        return key


def _joined(
    strategy: str, batch_size: int | None, workers: int | None, page_cache: str, *, throttled: bool = False
) -> str:
    known = STRATEGIES.get(strategy)
    throttled = throttled or (known is not None and known.location in THROTTLED)
    parts = [f"{strategy} (throttled)" if throttled else strategy]
    if batch_size is not None:
        parts.append(f"batch {batch_size:,}")
    if workers is not None:
        parts.append("1 worker" if workers == 1 else f"{workers} workers")
    if page_cache != "as-is":
        parts.append(f"{page_cache} cache")
    return ", ".join(parts)
