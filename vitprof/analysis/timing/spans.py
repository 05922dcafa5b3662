"""Arithmetic of spans in whole nanoseconds, so that parts add up to the whole exactly.

A set of spans is an (n, 2) int64 array of half-open [start, end). Sets are disjoint and sorted, as `union` makes
them, wherever a function says "set". Everything is vectorised: a run may have a million steps.
"""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Floats, Ints

Spans = Ints
"""(n, 2) int64, nanoseconds."""

NS_PER_S = 1e9


def nanoseconds(seconds: Floats) -> Ints:
    """Returns seconds as the nearest whole nanosecond, (n,) int64; NaN and infinities as 0, so check `np.isfinite`
    first.

    Exact to 1 ns up to 2**53 ns, 104 days of a monotonic clock.
    """
    return np.asarray(np.rint(np.where(np.isfinite(seconds), seconds, 0.0) * NS_PER_S), dtype=np.int64)


def from_seconds(start_s: Floats, end_s: Floats) -> Spans:
    """Returns one row for each pair of times, (n, 2) ns, in the order given.

    A row with NaN is empty (0, 0). An end before its start (rounding of events) gives an empty row at the start.
    """
    known = np.isfinite(start_s) & np.isfinite(end_s)
    start, end = (np.where(known, nanoseconds(np.asarray(t)), 0) for t in (start_s, end_s))
    return np.stack([start, np.maximum(start, end)], axis=1)


def union(spans: Spans) -> Spans:
    """Returns the set of all that any of the rows covers.

    Rows may overlap and come in any order; empty ones vanish.
    """
    rows = spans[spans[:, 1] > spans[:, 0]]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(rows[:, 1])
    begins = np.concatenate([[True], rows[1:, 0] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(rows) - 1]])
    return np.stack([rows[begins, 0], reach[last]], axis=1)


def complement(spans: Spans, start: int, end: int) -> Spans:
    """Returns what the set leaves uncovered of the span [start, end), as a set."""
    if end <= start:
        return np.empty((0, 2), dtype=np.int64)
    inside = np.clip(spans, start, end)
    edges = np.concatenate([[start], inside.ravel(), [end]]).reshape(-1, 2)
    return np.asarray(edges[edges[:, 1] > edges[:, 0]])


def intersect(a: Spans, b: Spans) -> Spans:
    """Returns what two sets have in common, as a set."""
    if not len(a) or not len(b):
        return np.empty((0, 2), dtype=np.int64)
    start, end = min(int(a[0, 0]), int(b[0, 0])), max(int(a[-1, 1]), int(b[-1, 1]))
    outside = np.concatenate([complement(a, start, end), complement(b, start, end)])
    return complement(union(outside), start, end)


def total(spans: Spans) -> int:
    """Returns the length of all rows together, ns. For a set this is the time that it covers."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def covered_before(spans: Spans, t: Ints) -> Ints:
    """Returns how much of the time before each `t` a set covers, (n,) int64 ns.

    It grows with t, at most as fast as t itself.
    """
    before = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
    if len(before) == 1:
        return np.zeros(np.shape(t), dtype=np.int64)
    begun = np.searchsorted(spans[:, 0], t, side="right")
    ahead = np.where(begun > 0, np.maximum(spans[begun - 1, 1] - t, 0), 0)
    return np.asarray(before[begun] - ahead)


def overlap(each: Spans, within: Spans) -> Ints:
    """Returns how much of each row the set `within` covers, (n,) int64 ns. The rows may be in any order and overlap."""
    end = np.maximum(each[:, 0], each[:, 1])
    return covered_before(within, end) - covered_before(within, each[:, 0])
