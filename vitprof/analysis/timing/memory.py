"""Device memory of a run, by what counted it: NVML and PyTorch's allocator do not mean the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitprof.recording.columns import RunSummary


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
