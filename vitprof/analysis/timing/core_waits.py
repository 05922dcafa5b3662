"""Which of several times is the longest, where threads waited for cores that others had.

A thread that is ready to run and has no core takes longer by just that. Where the threads of a transform wait for
each other, one that has no core holds up all: a blur took 53% and 71% of the transforms' time while other programs
took 0.65 and 1.1 of two cores, and 19% without them. So each time has bounds: without what its thread waited, it is
at most so long; without what the other threads of its process waited, too, at least so long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

SURELY = 1.1
"""How many times as long as any other one the longest must be: waits are known of a few batches and calls, whose
share of all of them is off by some percent."""
LITTLE_FRAC = 0.05
"""Share of all times below which waits for a core are left alone: vitprof's own threads and the system's use some, on a
quiet machine too. Reasoned, not measured: 5% cannot make another stage the largest where one is 1.1 times any other."""


@dataclass(frozen=True)
class Bounds:
    """A time, and what it would be if each thread always had a core; in one unit."""

    took: float
    """As measured."""
    at_least: float
    at_most: float

    @property
    def lost_frac(self) -> float:
        """Returns the share of the time that may be waits for a core."""
        return 1 - self.at_least / self.took if self.took > 0 else 0.0


def bounds_of(took: float, queued: float, threads_queued: float) -> Bounds:
    """Returns the bounds of a time in which its own thread, and the other threads of its process together, had
    no core."""
    at_most = max(0.0, took - queued)
    return Bounds(took, max(0.0, at_most - threads_queued), at_most)


def lost_together(times: Mapping[str, Bounds], at_most: float = math.inf) -> float:
    """Returns how much of all times may be waits for a core.

    `at_most`: what was waited in all of them, where it is not known in which: each may then have had any part of it.
    """
    return min(at_most, math.fsum(each.took - each.at_least for each in times.values()))


def surely_longest(times: Mapping[str, Bounds], lost_at_most: float = math.inf) -> str:
    """Returns the name of the longest time; "" where another one may be the longest without waits for a core, and
    where there is none. `lost_at_most` is as in `lost_together`."""
    longest = max(times, key=lambda name: times[name].took, default="")
    whole = math.fsum(each.took for each in times.values())
    if not whole > 0:
        return ""
    lost = lost_together(times, lost_at_most)
    others = [each.at_most for name, each in times.items() if name != longest]
    if lost < LITTLE_FRAC * whole:
        return longest
    return longest if times[longest].at_least >= SURELY * max(others, default=0.0) else ""
