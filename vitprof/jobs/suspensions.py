"""Finds the steps in which the job was stopped, while it runs; `jobs.settling` does so when it has ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.steady import end_s
from vitprof.analysis.timing.suspensions import STOP_COLUMNS, in_stops, stop_sentence
from vitprof.measure.wire import Steps
from vitprof.recording.columns import STEP_COLUMNS, Stop

LOOK_BACK = 20_000
"""The number of latest steps to search: no step ends during a stop, and even the fastest job makes fewer between the
end of a stop and the search."""
SURE_AFTER_S = 1.0
"""Once a step has arrived that ended this long (s) after a stop, all steps that the stop fell into have arrived."""
PLACES = [STEP_COLUMNS.index(name) for name in STOP_COLUMNS]


class LeftOut:
    """The stops of a run, and the steps that are left out because of them."""

    def __init__(self) -> None:
        self._recent: list[Steps] = []
        self.settled = 0
        """The number of stops whose steps were found."""
        self.notices: list[str] = []
        """What the user should know, one line for each of those that matters."""

    def add(self, rows: Steps) -> None:
        """Adds finished steps, (n, len(STEP_COLUMNS)), and drops those that are too old to be searched."""
        self._recent.append(rows[:, PLACES])
        while len(self._recent) > 1 and sum(map(len, self._recent[1:])) >= LOOK_BACK:
            del self._recent[0]

    def look(self, stops: Sequence[Stop], *, last: bool) -> list[int]:
        """Returns the numbers of the steps that stops fell into which are not settled yet. `stops` are all so far, in
        order; `last`: no more steps will come.
        """
        if len(stops) == self.settled:
            return []
        steps = self._steps()
        ends = end_s(steps)
        seen_s = float(np.nanmax(ends)) if np.isfinite(ends).any() else -np.inf
        numbers: list[int] = []
        for stop in stops[self.settled :]:
            if not last and seen_s < stop.t_end_s + SURE_AFTER_S:
                break
            hit = in_stops(steps, [stop])
            numbers += [int(step) for step in np.unique(steps["step"][hit])]
            if hit.any() or stop.kind in ("stopped", "asleep"):
                self.notices.append(stop_sentence(stop, int(hit.sum())))
            self.settled += 1
        return numbers

    def _steps(self) -> Series:
        rows = np.concatenate(self._recent) if self._recent else np.empty((0, len(PLACES)))
        return dict(zip(STOP_COLUMNS, rows.T, strict=True))
