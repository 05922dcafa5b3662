"""The figures of a watched run while it is running, for its status line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vitprof import formats
from vitprof.analysis.timing.summary import RunningTotals
from vitprof.recording.columns import STEP_COLUMNS

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
        self._taken: list[NDArray[np.float64]] = []
        """Blocks of steps that are not in the figures yet."""
        self._added_s = -math.inf

    def take(self, rows: NDArray[np.float64]) -> None:
        """Adds the next steps: float64 of shape (n, len(STEP_COLUMNS))."""
        if not len(rows):
            return
        self._steps += len(rows)
        self._taken.append(rows)
        now = self._clock()
        if now - self._added_s >= ADD_EVERY_S:
            self._added_s = now
            taken = np.concatenate(self._taken)
            self._taken.clear()
            self._running.add({name: taken[:, i] for i, name in enumerate(STEP_COLUMNS)})

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
