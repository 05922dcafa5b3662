"""Finds the steps that a stop of the job fell into, while it goes on; `jobs.settling` does so when it has ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.moments import end_s
from vitprof.analysis.timing.stops import STOP_COLUMNS, in_stops, stop_sentence
from vitprof.engine.protocol import Steps
from vitprof.records import STEP_COLUMNS, Stop

LOOK_BACK = 20_000
"""Steps that are looked at: nothing ran in a stop, and what the fastest job did since it was over is less."""
SURE_AFTER_S = 1.0
"""When a step that ended so long after a stop is there, all those that the stop fell into are."""
PLACES = [STEP_COLUMNS.index(name) for name in STOP_COLUMNS]


class LeftOut:
    """The stops of a run, and what came of them."""

    def __init__(self) -> None:
        self._recent: list[Steps] = []
        self.settled = 0
        """How many of the stops are settled."""
        self.notices: list[str] = []
        """What a person should know, one line for each of those."""

    def add(self, rows: Steps) -> None:
        """Takes finished steps."""
        self._recent.append(rows[:, PLACES])
        while len(self._recent) > 1 and sum(map(len, self._recent[1:])) >= LOOK_BACK:
            del self._recent[0]

    def look(self, stops: Sequence[Stop], *, last: bool) -> list[int]:
        """Returns the numbers of the steps that the stops which are not settled fell into. `stops` are all there were,
        in order; `last`: no more steps will come.
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
