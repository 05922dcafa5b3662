"""A judged run as rules of advice look at it, and a piece of advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitprof.analysis.signatures import Signature
from vitprof.analysis.thresholds import MOSTLY_CACHED_FRAC
from vitprof.config import RunConfig
from vitprof.config.catalog import dataset_info
from vitprof.config.parts import STORAGES


@dataclass(frozen=True)
class Advice:
    """Something to try."""

    settings: Mapping[str, Any]
    """Fields of `RunConfig` to change (`apply`); empty where nothing here can be set."""
    words: str
    """What to do, to follow "try"."""
    reason: str
    """Why it should help, one sentence."""
    samples_per_s: float = math.nan
    """What it was measured or predicted to give; NaN where nobody knows."""
    low: float = math.nan
    """Lower end of the 95% interval."""
    high: float = math.nan
    """Upper end of the 95% interval."""
    measured: bool = False
    """Whether the figure comes from a run; if not, it is predicted."""


@dataclass(frozen=True)
class Situation:
    """A judged run, as far as advice depends on it."""

    config: RunConfig
    """Resolved."""
    cause: str
    """As `Verdict.cause`."""
    kind: str
    """As `Verdict.kind`."""
    sure: bool = True
    """Whether all of the interval of the idle time lies in that class; if not, loading may cost more than it says."""
    on_cpu: bool = False
    """The CPU trains: there is no copy to save, and loading takes from training."""
    simulated: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The run's facts and its environment in one mapping."""
    free_cores: float = math.nan
    """Cores that nobody uses; NaN if not known."""
    samples_per_s: float = math.nan
    """How fast the run is."""
    signatures: Sequence[Signature] = ()
    causes: Sequence[str] = ()
    """Stages with a large share of the idle time, the largest first: advised for when the first has no remedy left."""

    @property
    def jpeg(self) -> bool:
        return dataset_info(self.config.dataset, self.config.n_images).kind == "jpeg"

    @property
    def form(self) -> str:
        return STORAGES[self.config.storage or ""].form

    @property
    def warm(self) -> bool:
        """Returns whether the files were in the page cache when training began, or it is not known."""
        cached = self.facts.get("page_cached_frac")
        return cached is None or not float(cached) < MOSTLY_CACHED_FRAC
