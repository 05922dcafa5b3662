"""Finds what the workers of a watched script use too much of: shared memory."""

import math

from vitprof.analysis.timing.steady import Trace
from vitprof.analysis.timing.worker_use import shared_memory_peak
from vitprof.formats import percent, size
from vitprof.recording.verdict import Signature

FULL_FRAC = 0.8
"""Share of /dev/shm in use from which it is named. Batches differ in size, as with padding: what is a fourth larger
than what was seen fills the rest."""


def shared_memory_full(trace: Trace) -> Signature | None:
    """Finds a /dev/shm that is nearly full: where it is, a worker that writes a batch to it ends with a bus
    error (SIGBUS; pytorch issue 5040)."""
    peak = shared_memory_peak(trace.telemetry)
    if not trace.config.workers or peak is None or not peak.frac >= FULL_FRAC:
        return None
    sentence = (
        f"/dev/shm was {percent(peak.frac)} full at its peak ({size(peak.used_bytes)} of "
        f"{size(peak.size_bytes)}, all programs together). Batches cross from their workers there: where it is "
        "full, a worker ends with a bus error. Fewer workers, a smaller prefetch_factor or a smaller batch take "
        "less; a container has 64 MiB unless it is given more (docker run --shm-size)."
    )
    evidence = {"used_bytes": peak.used_bytes, "size_bytes": peak.size_bytes}
    source = "statvfs of /dev/shm with each sample; pytorch issue 5040"
    return Signature("shared-memory-full", sentence, math.nan, math.nan, evidence, source)
