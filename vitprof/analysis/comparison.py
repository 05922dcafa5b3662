"""Finished runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitprof.records import RunSummary


@dataclass(frozen=True)
class Compared:
    """What a run gained over the slowest of those compared."""

    speed_up: float
    """samples_per_s over that of the slowest run; NaN where either is not known."""
    low: float
    """Smallest ratio that the two runs' 95% intervals allow; NaN without intervals."""
    high: float
    """Largest ratio that the two runs' 95% intervals allow."""
    tie: bool
    """The intervals overlap: the difference may be noise."""


def against_slowest(summaries: Sequence[RunSummary | None]) -> list[Compared]:
    """Each run's throughput over that of the slowest one, in the order given."""
    known = [s for s in summaries if s is not None and s.samples_per_s > 0]
    if not known:
        return [Compared(math.nan, math.nan, math.nan, tie=False) for _ in summaries]
    slowest = min(known, key=lambda s: s.samples_per_s)
    compared = []
    for s in summaries:
        if s is None or not s.samples_per_s > 0:
            compared.append(Compared(math.nan, math.nan, math.nan, tie=False))
            continue
        overlap = s is not slowest and s.samples_per_s_low <= slowest.samples_per_s_high
        compared.append(
            Compared(
                speed_up=s.samples_per_s / slowest.samples_per_s,
                low=s.samples_per_s_low / slowest.samples_per_s_high,
                high=s.samples_per_s_high / slowest.samples_per_s_low,
                tie=overlap,
            )
        )
    return compared
