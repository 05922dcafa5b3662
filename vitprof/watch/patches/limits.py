"""How many steps a script makes, or is watched for, where that was asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Counted:
    """What one thread did."""

    ends: int = 0
    """Requests for batches, but the first, and updates without one before: each ends one step at most."""
    asks_at: float = 0.0
    """So many of them at which the core is asked."""
    has_begun: bool = False
    """Whether there was any request or update."""
    fed: bool = False
    """Whether a batch was requested since the last update."""
    evaluates: bool = False
    """Whether one was requested without gradients since the last work."""


@dataclass(frozen=True)
class ThreadState:
    """What the core says of a thread."""

    steps: int
    """Its steps that have ended."""
    loader: int
    """The number of the loader that it trains on; 0 where none is known."""


class StepLimit(threading.local):
    """Ends the script, or its watching, after exactly so many steps, by the count of the core.

    The core alone knows what a step is. It is asked when enough of them can have ended at the soonest: a
    step ends with the next request, or it is an update without one.
    """

    def __init__(
        self,
        n_steps: int,
        ask: Callable[[], ThreadState | None],
        reached: Callable[[ThreadState], None],
    ) -> None:
        """`ask` returns what has ended in this thread; None where nobody knows."""
        self._n_steps = n_steps
        self._ask = ask
        self._reached = reached
        self._counted = Counted(asks_at=n_steps)

    def requested(self, *, gradients: bool = True) -> bool:
        """Notes a request for a batch, which was recorded; `gradients`: whether they were on. Returns
        whether the core was asked, which the script had to wait for; raises what `reached` raises.

        Without gradients a batch may be one to train on, or the next of thousands to evaluate on: of those
        without work between them only the first ends a step.
        """
        counted = self._counted
        counted.fed = True
        is_first = not counted.has_begun
        counted.has_begun = True
        goes_on = counted.evaluates and not gradients
        counted.evaluates = not gradients
        return not (is_first or goes_on) and self._count()

    def worked(self) -> None:
        """Notes a backward pass."""
        self._counted.evaluates = False

    def updated(self) -> None:
        """Notes a step of an optimizer, which was recorded; raises what `reached` raises."""
        counted = self._counted
        is_step = not counted.fed
        counted.has_begun = True
        counted.fed = False
        counted.evaluates = False
        if is_step:
            self._count()

    def _count(self) -> bool:
        counted = self._counted
        counted.ends += 1
        if counted.ends < counted.asks_at:
            return False
        ended = self._ask()
        if ended is None:
            counted.asks_at = math.inf
        elif ended.steps >= self._n_steps:
            self._reached(ended)
        else:
            counted.asks_at = counted.ends + self._n_steps - ended.steps
        return True
