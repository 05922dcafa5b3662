"""Times in which the run store could not be written, and what waited meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vitprof import formats
from vitprof.jobs.batches import Batch

TOLD_FROM_S = 1.0
"""A store that was away for less than this (s), and lost nothing, is not worth a notice."""


@dataclass
class Away:
    """A time in which the store cannot be written."""

    since_s: float
    why: str
    values: dict[str, Any] = field(default_factory=dict)
    """The newest values of the run's columns, by name."""
    kept: Batch = field(default_factory=Batch)
    """Data kept in memory because no file could take them."""
    chunk: Batch | None = None
    """Data read from a file that are not in the store yet."""


@dataclass
class Ending:
    """The end of a run that is not in the store yet."""

    settle: Callable[[], dict[str, Any]]
    values: dict[str, Any]
    t_end_s: float


@dataclass
class Outages:
    """All times in which the store could not be written, summed up for the notice."""

    n: int = 0
    seconds: float = 0.0
    why: str = ""
    lost_steps: int = 0
    lost_samples: int = 0
    why_lost: str = ""

    def notices(self, what_became: str, *, for_good: bool) -> list[str]:
        """Returns the notice for the user; none for a short outage that lost nothing, unless it is `for_good`.

        `what_became`: what became of the data, unless some were lost.
        """
        lost = [
            f"{n:,} {word}{'' if n == 1 else 's'}"
            for n, word in ((self.lost_steps, "step"), (self.lost_samples, "telemetry sample"))
            if n
        ]
        if lost:
            what_became = f"{' and '.join(lost)} of that time are lost: {self.why_lost}"
        elif self.seconds < TOLD_FROM_S and not for_good:
            return []
        times = "" if self.n == 1 else f" {self.n} times, in all"
        return [
            f"the run store could not be written{times} for {formats.seconds(self.seconds)} ({self.why}); {what_became}"
        ]
