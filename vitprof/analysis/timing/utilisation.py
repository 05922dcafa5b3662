"""The device's idle share over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Series
from vitprof.analysis.timing.chain import evaluated, find_chain
from vitprof.analysis.timing.gaps import Gaps
from vitprof.analysis.timing.spans import Spans, complement, covered_before, intersect, union
from vitprof.recording.columns import Phase


def idle_share(busy: Spans, edges: Ints, *, apart: Spans | None = None) -> Floats:
    """Returns the share of each bin in which the device was not busy, (len(edges) - 1,); `edges` in ns, ascending.

    `apart` is a set, such as evaluations, that counts as neither busy nor idle, even where it overlaps `busy`. A bin
    with nothing else in it is NaN.
    """
    working = busy if apart is None else _outside(busy, apart)
    length = np.diff(edges)
    if apart is not None:
        length = length - np.diff(covered_before(apart, edges))
    idle = length - np.diff(covered_before(working, edges))
    return np.asarray(np.where(length > 0, idle / np.maximum(length, 1), np.nan))


def idle_bins(
    steps: Series, phases: Sequence[Phase], *, bins: int = 500, gaps: Gaps | None = None
) -> tuple[Floats, Floats]:
    """Returns edges (bins + 1,) in seconds on the monotonic clock, and the device's idle share (bins,).

    They go from the first step's compute to the end of the last one's. Evaluation is neither idle nor busy. Both are
    empty if there is no step. `gaps` are those of all steps, if already known.
    """
    if gaps is None:
        chain = find_chain(steps)
        starts, ends = chain.start, chain.end
        prepared = np.stack([chain.prepare_start, chain.prepare_end], axis=1)
    else:  # each step's own work begins where its gap ends
        starts, ends = gaps.end_ns, gaps.end_ns + gaps.compute_ns - gaps.prepare_ns
        prepared = np.stack([gaps.prepare_start_ns, gaps.prepare_start_ns + gaps.prepare_ns], axis=1)
    if not len(starts):
        return np.empty(0), np.empty(0)
    edges = np.linspace(int(starts[0]), int(ends[-1]), bins + 1).astype(np.int64)
    busy = union(np.concatenate([np.stack([starts, ends], axis=1), prepared]))
    return edges / 1e9, idle_share(busy, edges, apart=evaluated(phases))


def _outside(busy: Spans, apart: Spans) -> Spans:
    """Returns what of the set `busy` is outside the set `apart`."""
    if not len(busy) or not len(apart):
        return busy
    start, end = int(busy[0, 0]), int(busy[-1, 1])
    return intersect(busy, complement(apart, start, end))
