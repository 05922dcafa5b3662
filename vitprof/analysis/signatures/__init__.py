"""Signatures: patterns in a run that point at one cause, each found by its own rule and described
in a sentence.
"""

import math
from collections.abc import Callable

from vitprof.analysis.signatures import hand_over, resources, samples, stalls, workers
from vitprof.analysis.timing.steady import Trace
from vitprof.recording.verdict import Signature

__all__ = ["RULES", "find_signatures"]

RULES: tuple[Callable[[Trace], Signature | None], ...] = (
    stalls.worker_period,
    stalls.slow_worker,
    stalls.epoch_start,
    resources.cold_to_warm,
    stalls.garbage_collection,
    stalls.first_batch,
    samples.slow_samples_seen,
    samples.periodic_batches_seen,
    samples.late_batches_seen,
    hand_over.many_tensors,
    hand_over.pickling_in_workers,
    hand_over.pinning_holds_the_lock,
    hand_over.open_descriptors,
    workers.shared_memory_full,
    workers.worker_memory_growth,
    workers.worker_threads,
    resources.memory_growth,
    resources.other_programs,
)
"""Each takes a run and returns the pattern that it found, or None."""


def find_signatures(trace: Trace) -> tuple[Signature, ...]:
    """Returns all patterns found in a run, the costliest first; those that cost no time come last.

    A rule without enough steps or telemetry finds nothing.
    """
    if not len(trace.steps["step"]):
        return ()
    signatures = [signature for rule in RULES if (signature := rule(trace)) is not None]
    return tuple(sorted(signatures, key=lambda s: 0.0 if math.isnan(s.cost_frac) else -s.cost_frac))
