"""Signatures: patterns in a run that point at one cause, each found by its own rule and described in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable

from vitprof.analysis.signatures.resources import cold_to_warm, memory_growth, other_programs
from vitprof.analysis.signatures.stalls import epoch_start, first_batch, garbage_collection, slow_worker, worker_period
from vitprof.analysis.timing.steady import Trace
from vitprof.recording.verdict import Signature

__all__ = ["RULES", "find_signatures"]

RULES: tuple[Callable[[Trace], Signature | None], ...] = (
    worker_period,
    slow_worker,
    epoch_start,
    cold_to_warm,
    garbage_collection,
    first_batch,
    memory_growth,
    other_programs,
)
"""Each takes a run and returns the pattern that it found, or None."""


def find_signatures(trace: Trace) -> tuple[Signature, ...]:
    """Returns all patterns found in a run, the costliest first; those that cost no time come last.

    A rule without enough steps or telemetry finds nothing.
    """
    if not len(trace.steps["step"]):
        return ()
    found = [signature for rule in RULES if (signature := rule(trace)) is not None]
    return tuple(sorted(found, key=lambda s: 0.0 if math.isnan(s.cost_frac) else -s.cost_frac))
