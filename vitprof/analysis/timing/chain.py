"""Each step's chain of events in whole nanoseconds, and arithmetic of spans: parts add up to the whole exactly.

A set of spans is an (n, 2) int64 array of half-open [start, end). Sets are disjoint and sorted, as `union` makes
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitprof.analysis.arrays import Floats, Ints, Mask, Series
from vitprof.analysis.timing.steady import begin_s, decode_wait_s, end_s, first_of_epoch, got_s, prepare_s
from vitprof.recording.columns import Phase

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


Scalar = TypeVar("Scalar", bound=np.generic)

CHAIN_COLUMNS = (
    *("t_start_s", "data_wait_s", "host_s", "h2d_s", "h2d_start_s", "compute_start_s", "compute_s", "gap_s"),
    *("decode_wait_s", "device_prepare_s", "outside_s"),
)
LONG_AGO = -(2**62)
"""Before any time in nanoseconds."""

RESUMED_NS = 1_000
"""If a step's `gap_s` begins later than this after the end of the previous step, the recorder resumed in between, after
something that is not a step. Less is rounding: float64 seconds of a clock that has run for 90 days are exact to 1
ns."""


@dataclass(frozen=True)
class Chain:
    """The chain of events behind each step, (n,) int64 nanoseconds on the monotonic clock; n steps whose device time is
    known.

    launched_before <= asked <= got <= launched, got <= arrived, and begin <= prepare_start <= prepare_end <= start <=
    end. A time that is not known is set so that its span is empty.
    """

    index: Ints
    """Position of the step in the series."""
    begin: Ints
    """When the time of the step begins: at the end of the previous step's device work, or where the recorder
    resumed."""
    prepare_start: Ints
    """From here to `prepare_end`, within the gap, the device normalised or gathered the batch: work, not idle time."""
    prepare_end: Ints
    start: Ints
    """When the step's compute began."""
    end: Ints
    """When the step's compute ended."""
    launched_before: Ints
    """When the previous step was launched."""
    told_before: Mask
    """Whether that is known; if not, launched_before == asked."""
    asked: Ints
    """When the loop asked for the batch."""
    got: Ints
    """When the loop had the batch."""
    arrived: Ints
    """When the device could use the batch: `got`, or later if it was decoded on the device."""
    tells_step: Mask
    """Whether the script marks its steps (`vitprof.step`) and did something outside this one. Then the time before
    `asked` is outside the step, not recording."""
    entered: Ints
    """When that step began: between `got` and `launched`; `got` if the script marks none."""
    launched: Ints
    """When the step was launched."""
    copy_start: Ints
    """When the copy of the batch began."""
    copy_end: Ints
    """When the copy of the batch ended."""
    opens_epoch: Mask
    """First step of an epoch other than the run's first."""


def evaluated(phases: Sequence[Phase]) -> Spans:
    """Returns the spans of the phases called "evaluate", as a set."""
    spans = np.array([(p.t_start_s, p.t_end_s) for p in phases if p.name == "evaluate"], dtype=float).reshape(-1, 2)
    return union(from_seconds(spans[:, 0], spans[:, 1]))


def find_chain(steps: Series, *, keep: Mask | None = None) -> Chain:
    """Returns the chain of each step in `keep` (all if None) whose device time is known."""
    known = np.isfinite(steps["compute_start_s"]) & np.isfinite(steps["compute_s"])
    index = np.flatnonzero(known)
    column = {name: np.asarray(steps[name], dtype=float)[index] for name in CHAIN_COLUMNS if name in steps}
    compute_start_s, h2d_s = column["compute_start_s"], column["h2d_s"]
    start, end = nanoseconds(compute_start_s), nanoseconds(end_s(column))
    before = _shifted(np.maximum.accumulate(np.maximum(start, end)), LONG_AGO)
    start = np.maximum(start, before)
    end = np.maximum(end, start)
    neighbour = np.concatenate([np.zeros(min(1, len(index)), dtype=bool), np.diff(index) == 1])
    begin = _begin(begin_s(column), index, neighbour, before, start, resumes=keep is not None)

    # The host's line. Unknown spans are empty; a batch in hand whose launch is not known (runs of older versions)
    # kept the device waiting until its compute began.
    in_hand_s = got_s(column)
    waited = np.isfinite(in_hand_s)
    asked = np.where(waited, nanoseconds(column["t_start_s"]), start)
    got = np.where(waited, np.maximum(nanoseconds(in_hand_s), asked), start)
    launch_known = waited & np.isfinite(column["host_s"])
    launched = np.maximum(np.where(launch_known, nanoseconds(in_hand_s + column["host_s"]), start), got)
    told_before = neighbour & waited & _shifted(launch_known, False)
    launched_before = np.where(told_before, np.minimum(_shifted(launched, LONG_AGO), asked), asked)
    outside_s = column.get("outside_s", np.full(len(index), np.nan))
    tells_step = outside_s > 0
    before_step = np.maximum(nanoseconds(np.nan_to_num(outside_s)) - (asked - launched_before), 0)
    # An older record gives the length of the copy only: it ended where the compute began.
    copy_s = np.where(np.isfinite(column["h2d_start_s"]), column["h2d_start_s"], compute_start_s - h2d_s)
    copy = from_seconds(copy_s, copy_s + h2d_s)
    decoding = nanoseconds(decode_wait_s(column))
    arrived = np.where(decoding > 0, np.minimum(np.maximum(begin, got) + decoding, np.maximum(got, start)), got)
    prepare_start = np.clip(copy[:, 1], begin, start)
    chain = Chain(
        index=index,
        begin=begin,
        prepare_start=prepare_start,
        prepare_end=np.minimum(prepare_start + nanoseconds(prepare_s(column)), start),
        start=start,
        end=end,
        launched_before=launched_before,
        told_before=told_before,
        asked=asked,
        got=got,
        arrived=arrived,
        tells_step=tells_step,
        entered=np.minimum(got + before_step, launched),
        launched=launched,
        copy_start=copy[:, 0],
        copy_end=copy[:, 1],
        opens_epoch=first_of_epoch(steps)[index] & (index > 0),
    )
    if keep is None:
        return chain
    kept = np.asarray(keep, dtype=bool)[index]
    if kept.all():
        return chain
    return Chain(**{name: values[kept] for name, values in vars(chain).items()})


def _begin(resumed_s: Floats, index: Ints, neighbour: Mask, before: Ints, start: Ints, *, resumes: bool) -> Ints:
    """Returns where the time of each step begins, (n,) ns: see `find_gaps`.

    `resumed_s` is where its `gap_s` begins, `before` where the previous step ended.
    """
    known = np.isfinite(resumed_s)
    resumed = np.clip(np.where(known, nanoseconds(resumed_s), start), before, start)
    alone = np.where((index == 0) & (not resumes), start, resumed)
    begin = np.where(neighbour, before, alone)
    return np.where(resumes & known & (resumed - before > RESUMED_NS), resumed, begin)


def _shifted(values: NDArray[Scalar], first: Any) -> NDArray[Scalar]:
    """Returns the values shifted by one place, with `first` in front; (n,) as `values`."""
    return np.concatenate([np.full(min(1, len(values)), first, dtype=values.dtype), values[:-1]])
