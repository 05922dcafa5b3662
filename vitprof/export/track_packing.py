"""Packs spans of time onto as few tracks as they need: a track of a trace holds one span at a time."""

from __future__ import annotations

import heapq

import numpy as np

from vitprof.analysis.arrays import Ints


class TrackPacker:
    """Lanes for spans that arrive in parts, roughly in the order of time."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        """When the last span on each lane ends."""

    def pack(self, start: Ints, end: Ints) -> Ints:
        """Returns a lane, from 0, for each span of a part, so that spans on one lane never overlap, those of earlier
        parts included.

        One part takes as few lanes as possible. All arrays are (n,) int64. Spans may come in any order; end >= start.
        """
        found = np.zeros(len(start), dtype=np.int64)
        order = np.lexsort((end, start))
        reached = np.maximum.accumulate(end[order])
        alone = len(self._ends) < 2 and not (start[order][1:] < reached[:-1]).any()
        if alone and len(order) and (not self._ends or start[order[0]] >= self._ends[0]):
            self._ends = [int(reached[-1])]  # the usual case: a worker makes one batch at a time
            return found
        busy = sorted((until, lane) for lane, until in enumerate(self._ends))
        free: list[int] = []
        for i in order.tolist():
            while busy and busy[0][0] <= start[i]:
                heapq.heappush(free, heapq.heappop(busy)[1])
            lane = heapq.heappop(free) if free else len(self._ends)
            if lane == len(self._ends):
                self._ends.append(0)
            found[i] = lane
            self._ends[lane] = int(end[i])
            heapq.heappush(busy, (self._ends[lane], lane))
        return found

    @property
    def n_lanes(self) -> int:
        """Returns how many lanes there are so far."""
        return len(self._ends)
