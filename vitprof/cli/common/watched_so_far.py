"""The figures of a watched run while it is running, for its status line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.summary import RunningTotals
from vitprof.store.chunks import joined, n_rows

ADD_EVERY_S = 0.5
"""Seconds between updates of the figures; the status line is redrawn as often. An update costs the same for one step
as for hundreds."""
WAITING = "waiting for a training loop over a DataLoader"


class WatchedSoFar:
    """The figures of all steps received so far. One thread calls `take`, another one `words`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._running = RunningTotals()
        self._steps = 0
        self._taken: list[Series] = []
        """Blocks of steps that are not in the figures yet."""
        self._added_s = -math.inf

    def take(self, steps: Series) -> None:
        """Adds the next steps."""
        if not n_rows(steps):
            return
        self._steps += n_rows(steps)
        self._taken.append(steps)
        now = self._clock()
        if now - self._added_s >= ADD_EVERY_S:
            self._added_s = now
            self._running.add(joined("steps", self._taken))
            self._taken.clear()

    def words(self, run_id: int, state: str = "") -> str:
        """Returns a line about the run: its steps, and the steady-state figures that the dashboard shows too.

        `run_id`: 0 if the run is not in the store yet. `state`: anything else to say about it, such as that it is being
        stopped.
        """
        totals, said = self._running.totals, []
        if not self._steps:
            said.append(f"{WAITING}, {self._clock() - self._since_s:.0f} s")
        else:
            said.append(f"{self._steps:,} steps")
            if totals.steps:
                said.append(formats.number(totals.samples_per_s, "samples/s"))
                said.append(f"data wait {formats.percent(totals.share(totals.data_wait_s))}")
                said.append(f"device idle {formats.percent(totals.share(totals.gap_s))}")
            else:
                said.append("warming up")
        return f"vitprof run{f' {run_id}' if run_id else ''}{', ' + state if state else ''}: {', '.join(said)}"
