"""Spans of time on as few tracks as they need: a track of a trace holds one thing at a time."""

from __future__ import annotations

import heapq

import numpy as np

from vitprof.analysis.arrays import Ints


def pack_tracks(start: Ints, end: Ints) -> Ints:
    """Returns a lane for each span, from 0, so that none of a lane overlap; the lowest lane that is free. (n,) int64.

    Spans may come in any order; end >= start.
    """
    found = np.zeros(len(start), dtype=np.int64)
    order = np.lexsort((end, start))
    reached = np.maximum.accumulate(end[order])
    if not (start[order][1:] < reached[:-1]).any():  # the rule: whoever makes batches makes one at a time
        return found
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for i in order.tolist():
        while busy and busy[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        found[i] = lane
        heapq.heappush(busy, (int(end[i]), lane))
    return found
