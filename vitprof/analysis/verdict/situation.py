"""What rules of advice know of a judged run, and a piece of advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitprof.analysis.thresholds import MOSTLY_CACHED_FRAC
from vitprof.config import RunConfig
from vitprof.config.catalog import dataset_info
from vitprof.config.parts import STORAGES
from vitprof.recording.verdict import Signature


@dataclass(frozen=True)
class Situation:
    """A judged run, as far as advice depends on it."""

    config: RunConfig
    """Resolved."""
    cause: str
    """See `Verdict.cause`."""
    kind: str
    """See `Verdict.kind`."""
    sure: bool = True
    """Whether the whole interval of the idle time is in that class; if not, loading may cost more than the class
    says."""
    on_cpu: bool = False
    """Whether the CPU trains: there is no copy to save, and loading takes CPU from training."""
    simulated: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The run's facts and its environment in one mapping."""
    free_cores: float = math.nan
    """Cores that are idle while the job trains; NaN if not known."""
    samples_per_s: float = math.nan
    """Throughput of the run."""
    signatures: Sequence[Signature] = ()
    causes: Sequence[str] = ()
    """Stages with a large share of the idle time, the largest first; their advice follows that for `cause`."""

    @property
    def jpeg(self) -> bool:
        """Returns whether the data set is of kind "jpeg" (`DatasetInfo.kind`)."""
        return dataset_info(self.config.dataset, self.config.n_images).kind == "jpeg"

    @property
    def form(self) -> str:
        """Returns the form in which the storage keeps samples (`StoragePart.form`)."""
        return STORAGES[self.config.storage or ""].form

    @property
    def warm(self) -> bool:
        """Returns whether the files were in the page cache when training began; True if that is not known."""
        cached = self.facts.get("page_cached_frac")
        return cached is None or not float(cached) < MOSTLY_CACHED_FRAC
