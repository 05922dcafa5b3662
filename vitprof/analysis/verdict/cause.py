"""Why the device idled: which stage of loading, other programs, or the loop itself; and all that advice rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitprof.analysis.arrays import mean
from vitprof.analysis.signatures.resources import saturated
from vitprof.analysis.thresholds import MOSTLY_CACHED_FRAC, QUEUED_FRAC
from vitprof.analysis.timing.exposure import Exposure, synchronous
from vitprof.analysis.timing.steady import Trace
from vitprof.config import RunConfig
from vitprof.config.catalog import dataset_info
from vitprof.config.parts import STORAGES
from vitprof.recording.columns import TIMED_STAGES
from vitprof.recording.verdict import Signature

CPU_WORK = (*(stage for stage in TIMED_STAGES if stage != "read"), "rest", "loading", "hand_over")
"""Stages of loading that are CPU work; a read mostly waits."""
UNKNOWN_CAUSE = ""
LAUNCH_BOUND = "launch-bound"


@dataclass(frozen=True)
class Contention:
    """The time that a run lost to other programs that keep the CPU busy."""

    waited_ms: float
    """Milliseconds of each batch's idle time in which loading was ready to run but had no core. NaN if the system does
    not count that, 0 if no other program took much."""
    of_training_too: bool
    """Whether training waited for cores as well, because the CPU trains: without the other programs the device would
    idle the same share of a shorter time."""

    def inflates(self, idle_ms: float) -> bool:
        """Returns whether that is a good part (`QUEUED_FRAC`) of `idle_ms`, the idle milliseconds a batch."""
        return self.waited_ms > 0 and self.waited_ms >= QUEUED_FRAC * idle_ms


def find_contention(config: RunConfig, trace: Trace, exposure: Exposure, *, on_cpu: bool) -> Contention:
    """Returns what other programs cost. `config` is resolved; `on_cpu` says whether the CPU trains."""
    waited_ms = min(_queued_ms(config, trace), exposure.idle_ms) if saturated(trace) else 0.0
    return Contention(waited_ms, on_cpu)


def find_cause(
    config: RunConfig, trace: Trace, exposure: Exposure, kind: str, contention: Contention
) -> tuple[str, float, float]:
    """Returns the cause (`Verdict.cause`), its share of the idle time and the milliseconds a batch that it costs.

    Other programs are the cause only if the idle time would fall without them. Where the CPU trains it would not: they
    slow loading and training alike.
    """
    if kind == LAUNCH_BOUND:
        return "launches", 1.0, exposure.paced.value * trace.step_s * 1e3
    if not exposure.shares:
        return UNKNOWN_CAUSE, math.nan, math.nan
    largest = exposure.shares[0]
    if largest.name == "read" and config.location == "slow-drive":
        return "slow_drive", largest.frac, largest.exposed_ms
    if (
        largest.name in CPU_WORK
        and not contention.of_training_too
        and contention.waited_ms >= QUEUED_FRAC * largest.exposed_ms
    ):
        return "cpu_contention", contention.waited_ms / exposure.idle_ms, contention.waited_ms
    return largest.name, largest.frac, largest.exposed_ms


def _queued_ms(config: RunConfig, trace: Trace) -> float:
    """Returns the milliseconds a batch that loading was ready to run but had no core; NaN if that is not known.

    Workers wait side by side, so a batch's wait is one worker's share of the total.
    """
    _, waited_pct = trace.while_training("job_cpu_wait_pct")
    makers = 1 if synchronous(config) else max(1, config.workers or 1)
    return mean(waited_pct) / 100 * trace.step_s * 1e3 / makers


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
