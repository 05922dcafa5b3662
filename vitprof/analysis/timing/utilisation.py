"""How full a device was: its idle share over time, SM activity, and its memory by what counted it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Ints, Series, mean
from vitprof.analysis.timing.chain import Spans, complement, covered_before, evaluated, find_chain, intersect, union
from vitprof.analysis.timing.gaps import Gaps
from vitprof.recording.columns import Phase, RunSummary


def idle_share(busy: Spans, edges: Ints, *, apart: Spans | None = None) -> Floats:
    """Returns the share of each bin in which the device was not busy, (len(edges) - 1,); `edges` in ns, ascending.

    `apart` is a set, such as evaluations, that counts as neither busy nor idle, even where it overlaps `busy`. A bin
    with nothing else in it is NaN.
    """
    working = busy if apart is None else _outside(busy, apart)
    length = np.diff(edges)
    if apart is not None:
        length = length - np.diff(covered_before(apart, edges))
    idle = length - np.diff(covered_before(working, edges))
    return np.asarray(np.where(length > 0, idle / np.maximum(length, 1), np.nan))


def idle_bins(
    steps: Series, phases: Sequence[Phase], *, bins: int = 500, gaps: Gaps | None = None
) -> tuple[Floats, Floats]:
    """Returns edges (bins + 1,) in seconds on the monotonic clock, and the device's idle share (bins,).

    They go from the first step's compute to the end of the last one's. Evaluation is neither idle nor busy. Both are
    empty if there is no step. `gaps` are those of all steps, if already known.
    """
    if gaps is None:
        chain = find_chain(steps)
        starts, ends = chain.start, chain.end
        prepared = np.stack([chain.prepare_start, chain.prepare_end], axis=1)
    else:  # each step's own work begins where its gap ends
        starts, ends = gaps.end_ns, gaps.end_ns + gaps.compute_ns - gaps.prepare_ns
        prepared = np.stack([gaps.prepare_start_ns, gaps.prepare_start_ns + gaps.prepare_ns], axis=1)
    if not len(starts):
        return np.empty(0), np.empty(0)
    edges = np.linspace(int(starts[0]), int(ends[-1]), bins + 1).astype(np.int64)
    busy = union(np.concatenate([np.stack([starts, ends], axis=1), prepared]))
    return edges / 1e9, idle_share(busy, edges, apart=evaluated(phases))


def _outside(busy: Spans, apart: Spans) -> Spans:
    """Returns what of the set `busy` is outside the set `apart`."""
    if not len(busy) or not len(apart):
        return busy
    start, end = int(busy[0, 0]), int(busy[-1, 1])
    return intersect(busy, complement(apart, start, end))


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
        """Returns whether there is anything to say."""
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
    return _known(summary.gpu_sm_active_pct_mean, summary.gpu_sm_occupancy_pct_mean, environment)


def sm_activity_so_far(telemetry: Series, since_s: float, environment: Mapping[str, Any]) -> SmActivity:
    """Returns the SM activity of a running job from its samples since `since_s`, when training began."""
    since = telemetry["t_s"] >= since_s
    active, occupancy = (mean(telemetry[f"gpu_sm_{name}_pct"][since]) for name in ("active", "occupancy"))
    return _known(active, occupancy, environment)


def _known(active_pct: float, occupancy_pct: float, environment: Mapping[str, Any]) -> SmActivity:
    known = math.isfinite(active_pct)
    return SmActivity(active_pct, occupancy_pct, "" if known else str(environment.get(NOT_AVAILABLE_OF_RUN) or ""))


@dataclass(frozen=True)
class MemoryFigure:
    """A peak of a run's device memory."""

    name: str
    """Name in a table."""
    n_bytes: float
    meaning: str
    """What is counted, in a few words."""


def device_memory(summary: RunSummary) -> list[MemoryFigure]:
    """Returns the known peaks, the widest first. Runs made before they were told apart have a single one."""
    figures = [
        MemoryFigure(
            "GPU memory, NVML",
            summary.gpu_mem_nvml_peak_bytes,
            "all that the job's processes held, CUDA itself included",
        ),
        MemoryFigure(
            "GPU memory, reserved", summary.gpu_mem_reserved_peak_bytes, "held by PyTorch's allocator, used or not"
        ),
        MemoryFigure("GPU memory, allocated", summary.gpu_mem_allocated_peak_bytes, "in PyTorch's tensors"),
    ]
    known = [figure for figure in figures if math.isfinite(figure.n_bytes)]
    if not known and math.isfinite(summary.gpu_mem_peak_bytes):
        return [MemoryFigure("GPU memory", summary.gpu_mem_peak_bytes, "NVML's, or PyTorch's where it has none")]
    return known
