"""The trials of a tournament: a trial is a setting, and its outcomes are its runs, one for each round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitprof.analysis.arrays import Floats
from vitprof.config.own_script import is_own_key, own_key_in_words
from vitprof.config.strategies import STRATEGIES
from vitprof.recording.columns import RunSummary

Status = Literal["waiting", "running", "done", "failed", "refused", "cut", "stopped"]
OUT_OF_THE_RACE: tuple[Status, ...] = ("failed", "refused")
"""A trial with one of these statuses stays in the table with its reason but is not ranked: nobody could use the
setting."""


@dataclass(frozen=True)
class Outcome:
    """One run of a trial."""

    round: int
    """Number of the repeat, from 1. Runs of one round are close in time, so they are compared in pairs."""
    run_id: int
    status: Status
    blocks_per_s: Floats
    """samples/s of blocks of neighbouring steady steps in order (`block_rates`), (n,) float64; empty if none."""
    summary: RunSummary | None
    """None until the run has ended."""
    others_cores: float = math.nan
    """Cores that other programs took in its steady state, on average (`others_cpu`); NaN: not known."""


@dataclass(frozen=True)
class Entry:
    """One trial: a setting with its outcomes."""

    key: str
    """strategy/b<batch>/w<workers or ->/<page cache> (`trial_key`); for a user's own script
    `config.own_script.OwnSetting.key`."""
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
    """Disk space of its storage; NaN where not known."""
    ram_bytes: float
    """Memory of its RAM disk and of the samples that it keeps; NaN where not known."""
    shuffle: str = "full"
    """Order of an epoch: full, block or none (`RunConfig.shuffle`)."""
    n_made: int = 0
    """Number of its runs in the store, including those that failed, were stopped or are still running."""
    throttled: bool = False
    """Whether it reads from the imitated slow drive, or is staged from it."""
    losses: str = ""
    """Its effect on the losses of a user's own script (`analysis.tournament.losses`); "" for none."""


THROTTLED = ("slow-drive", "staged")
"""Locations (`parts.LOCATIONS`) that read from the imitated slow drive; they are labelled wherever they appear."""


def trial_key(strategy: str, batch_size: int, workers: int | None, page_cache: str) -> str:
    """Returns the key of a trial: strategy/b<batch>/w<workers or ->/<page cache>."""
    return f"{strategy}/b{batch_size}/w{'-' if workers is None else workers}/{page_cache}"


def setting_in_words(entry: Entry, *, batch: bool = True) -> str:
    """Returns the setting in words: "pt-memory, batch 512, 2 workers, cold cache".

    `batch` says whether to include the batch size.
    """
    if is_own_key(entry.key):
        return own_key_in_words(entry.key)
    batch_size = entry.batch_size if batch else None
    return _joined(entry.strategy, batch_size, entry.workers, entry.page_cache, throttled=entry.throttled)


def key_in_words(key: str) -> str:
    """Returns the setting with this key, as `setting_in_words` words it; the key itself if it is not one."""
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
