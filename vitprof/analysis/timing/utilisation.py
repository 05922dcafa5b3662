"""How full a device was: its idle share over time, SM activity, and its memory by what counted it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Ints, Series, mean
from vitprof.analysis.timing.chain import Spans, covered_before, evaluated, union
from vitprof.analysis.timing.gaps import Gaps, find_gaps
from vitprof.recording.columns import Phase, RunSummary


def idle_share(busy: Spans, edges: Ints, *, apart: Spans | None = None) -> Floats:
    """Returns the share of each bin in which the device was not busy, (len(edges) - 1,); `edges` in ns. `apart`, such
    as evaluations, counts as neither, even where it overlaps `busy`; NaN for a bin with nothing else.
    """
    apart = busy[:0] if apart is None else apart
    either = union(np.concatenate([busy, apart])) if len(apart) else busy
    length = np.diff(edges) - np.diff(covered_before(apart, edges))
    idle = np.diff(edges) - np.diff(covered_before(either, edges))
    return np.asarray(np.where(length > 0, idle / np.maximum(length, 1), np.nan))


def idle_bins(
    steps: Series, phases: Sequence[Phase], *, bins: int = 500, gaps: Gaps | None = None
) -> tuple[Floats, Floats]:
    """Returns edges (bins + 1,) in seconds on the monotonic clock, and the device's idle share (bins,), from the first
    step's compute to the last one's end; empty without steps. Evaluation is neither.
    """
    gaps = gaps or find_gaps(steps, phases)
    # each step's own work begins where its gap ends
    starts = gaps.end_ns
    prepared = gaps.prepare_start_ns
    if not len(starts):
        return np.empty(0), np.empty(0)
    ends = starts + gaps.compute_ns - gaps.prepare_ns
    edges = np.linspace(int(starts[0]), int(ends[-1]), bins + 1).astype(np.int64)
    computing = np.stack([starts, ends], axis=1)
    preparing = np.stack([prepared, prepared + gaps.prepare_ns], axis=1)
    return edges / 1e9, idle_share(
        union(np.concatenate([computing, preparing])), edges, apart=evaluated(phases)
    )


NOT_AVAILABLE_OF_RUN = "sm_activity_not_available"
"""Fact of a run that says why it has no SM activity (`vitprof.telemetry.Telemetry.facts`)."""
MEANING = "share of the multiprocessors that were busy, and of the warps they can hold, by NVML's GPM counters"


@dataclass(frozen=True)
class SmActivity:
    """SM activity of a run, or why it has none. A run without a GPU has neither."""

    active_pct: float
    """Mean share of the multiprocessors that were busy, 0..100; NaN where it is not available."""
    occupancy_pct: float
    """Mean share of the warps the multiprocessors can hold that were in flight, 0..100."""
    why_not: str
    """Why it is not available; "" if it is, if there is no GPU, or if that is not known yet."""

    def __bool__(self) -> bool:
        return math.isfinite(self.active_pct) or bool(self.why_not)

    @property
    def words(self) -> str:
        """Returns both figures, or the reason; "" where there is neither."""
        if not self:
            return ""
        if not math.isfinite(self.active_pct):
            return f"not available: {self.why_not}"
        return f"{formats.percent(self.active_pct / 100)}, occupancy {formats.percent(self.occupancy_pct / 100)}"


def sm_activity(summary: RunSummary, environment: Mapping[str, Any]) -> SmActivity:
    """Returns the SM activity of a run that has ended; `environment` is the run's."""
    active = summary.gpu_sm_active_pct_mean
    occupancy = summary.gpu_sm_occupancy_pct_mean
    why_not = "" if math.isfinite(active) else str(environment.get(NOT_AVAILABLE_OF_RUN) or "")
    return SmActivity(active, occupancy, why_not)


def sm_activity_so_far(
    telemetry: Series, since_s: float, environment: Mapping[str, Any]
) -> SmActivity:
    """Returns the SM activity of a running job from its samples since `since_s`, when training began."""
    since = telemetry["t_s"] >= since_s
    active, occupancy = (
        mean(telemetry[f"gpu_sm_{name}_pct"][since]) for name in ("active", "occupancy")
    )
    return sm_activity(
        RunSummary(gpu_sm_active_pct_mean=active, gpu_sm_occupancy_pct_mean=occupancy), environment
    )


@dataclass(frozen=True)
class MemoryFigure:
    """A peak of a run's device memory."""

    name: str
    n_bytes: float
    meaning: str


def device_memory(summary: RunSummary) -> list[MemoryFigure]:
    """Returns the known peaks, the widest first. Runs made before they were told apart have a single one."""
    s = summary
    nvml = "all that the job's processes held, CUDA itself included"
    peaks = [
        MemoryFigure("GPU memory, NVML", s.gpu_mem_nvml_peak_bytes, nvml),
        MemoryFigure(
            "GPU memory, reserved",
            s.gpu_mem_reserved_peak_bytes,
            "held by PyTorch's allocator, used or not",
        ),
        MemoryFigure(
            "GPU memory, allocated", s.gpu_mem_allocated_peak_bytes, "in PyTorch's tensors"
        ),
    ]
    single = MemoryFigure(
        "GPU memory", s.gpu_mem_peak_bytes, "NVML's, or PyTorch's where it has none"
    )
    known = [peak for peak in peaks if math.isfinite(peak.n_bytes)]
    return known or ([single] if math.isfinite(single.n_bytes) else [])
