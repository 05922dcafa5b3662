"""Each step's chain of events in ns; arithmetic of spans, (n, 2) int64, half-open, disjoint, sorted (`union`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Mask, Series, column
from vitprof.analysis.timing import steady
from vitprof.recording.columns import Phase

Spans = Ints
"""(n, 2) int64, nanoseconds."""


def nanoseconds(seconds: Floats) -> Ints:
    """Returns seconds as whole nanoseconds, (n,) int64, exact up to 2**53 ns (104 days); 0 for what is not finite."""
    return np.asarray(np.rint(np.where(np.isfinite(seconds), seconds, 0.0) * 1e9), dtype=np.int64)


def from_seconds(start_s: Floats, end_s: Floats) -> Spans:
    """Returns a row for each pair of times, (n, 2) ns: (0, 0) with NaN, empty where the end is before the start."""
    known = np.isfinite(start_s) & np.isfinite(end_s)
    start, end = (np.where(known, nanoseconds(t), 0) for t in (start_s, end_s))
    return np.stack([start, np.maximum(start, end)], axis=1)


def union(spans: Spans) -> Spans:
    """Returns the set of all that any of the rows covers. Rows may overlap and come in any order; empty ones vanish."""
    rows = spans[spans[:, 1] > spans[:, 0]]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(rows[:, 1])
    begins = np.concatenate([[True], rows[1:, 0] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(rows) - 1]])
    return np.stack([rows[begins, 0], reach[last]], axis=1)


def covered_before(spans: Spans, t: Ints) -> Ints:
    """Returns how much of the time before each `t` a set covers, (n,) int64 ns."""
    before = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
    if len(before) == 1:
        return np.zeros(np.shape(t), dtype=np.int64)
    begun = np.searchsorted(spans[:, 0], t, side="right")
    return np.asarray(
        before[begun] - np.where(begun > 0, np.maximum(spans[begun - 1, 1] - t, 0), 0)
    )


LONG_AGO = -(2**62)
"""Before any time in nanoseconds."""
RESUMED_NS = 1_000
"""If a step's `gap_s` begins later than this after the end of the previous step, the recorder
resumed in between, after something that is not a step. Less is rounding: float64 seconds of a clock
that has run for 90 days are exact to 1 ns."""


@dataclass(frozen=True)
class Chain:
    """The chain of events behind each step whose device time is known, (n,) int64 ns on the monotonic clock:
    launched_before <= requested <= got <= launched, got <= arrived, and
    begin <= prepare_start <= prepare_end <= start <= end. An unknown time makes its span empty.
    """

    index: Ints
    begin: Ints
    """When the step's time begins: the end of the previous step's device work, or where the recorder resumed."""
    prepare_start: Ints
    """From here to `prepare_end`, within the gap, the device normalised or gathered the batch: work, not idle time."""
    prepare_end: Ints
    start: Ints
    end: Ints
    launched_before: Ints
    known_before: Mask
    """Whether that is known; if not, launched_before == requested."""
    requested: Ints
    got: Ints
    arrived: Ints
    """When the device could use the batch: `got`, or later if it was decoded on the device."""
    marked: Mask
    """Whether the script marks its steps (`vitprof.step`): the time before `requested` is then its own, not
    recording."""
    entered: Ints
    """When the step itself began; what the script does between `got` and this is outside it."""
    launched: Ints
    copy_start: Ints
    copy_end: Ints
    opens_epoch: Mask
    """First step of an epoch other than the run's first."""


def spans_of(phases: Iterable[Phase]) -> Spans:
    spans = np.array([(p.t_start_s, p.t_end_s) for p in phases], dtype=float).reshape(-1, 2)
    return union(from_seconds(spans[:, 0], spans[:, 1]))


def evaluated(phases: Iterable[Phase]) -> Spans:
    return spans_of(p for p in phases if p.name == "evaluate")


def find_chain(
    steps: Series, first: int, stop: int, *, reach: int = LONG_AGO, resumes: bool = True
) -> Chain:
    """Returns the chain of the steps `first` to `stop` whose device time is known. `reach` is when the device work
    before ended, if known. A step's time begins there, or with `resumes` where the recorder resumed later.
    """
    before = max(
        first - 1, 0
    )  # with one step more in front, its launch and the end of its compute are known
    part = {name: values[before:stop] for name, values in steps.items()}
    row = np.flatnonzero(np.isfinite(part["compute_start_s"]) & np.isfinite(part["compute_s"]))
    opens_epoch = steady.first_of_epoch(part)[row] & (row + before > 0)
    if len(row) < stop - before:
        part = {name: values[row] for name, values in part.items()}
    start = nanoseconds(part["compute_start_s"])
    end = nanoseconds(steady.end_s(part))
    ended = np.maximum(_shifted(np.maximum.accumulate(np.maximum(start, end)), LONG_AGO), reach)
    start = np.maximum(start, ended)
    end = np.maximum(end, start)

    neighbour = np.concatenate([np.zeros(min(1, len(row)), dtype=bool), np.diff(row) == 1])
    resumed_s = steady.begin_s(part)
    known = np.isfinite(resumed_s)
    resumed = np.clip(np.where(known, nanoseconds(resumed_s), start), ended, start)
    begin = np.where(
        neighbour, ended, resumed if resumes else np.where(row + before == 0, start, resumed)
    )
    begin = np.where(resumes & known & (resumed - ended > RESUMED_NS), resumed, begin)

    # The host's line. Unknown spans are empty; a batch in hand whose launch is not known (runs of older versions)
    # kept the device waiting until its compute began.
    in_hand_s = steady.got_s(part)
    waited = np.isfinite(in_hand_s)
    requested = np.where(waited, nanoseconds(part["t_start_s"]), start)
    got = np.where(waited, np.maximum(nanoseconds(in_hand_s), requested), start)
    launch_known = waited & np.isfinite(part["host_s"])
    launched = np.maximum(
        np.where(launch_known, nanoseconds(in_hand_s + part["host_s"]), start), got
    )
    known_before = neighbour & waited & _shifted(launch_known, False)
    launched_before = np.where(
        known_before, np.minimum(_shifted(launched, LONG_AGO), requested), requested
    )
    outside_s = column(part, "outside_s")
    outside = np.maximum(nanoseconds(outside_s) - (requested - launched_before), 0)
    # An older record gives the length of the copy only: it ended where the compute began.
    h2d_s = part["h2d_s"]
    copied_s = part["h2d_start_s"]
    copy_s = np.where(np.isfinite(copied_s), copied_s, part["compute_start_s"] - h2d_s)
    copy = from_seconds(copy_s, copy_s + h2d_s)
    decoding = nanoseconds(steady.decode_wait_s(part))
    arrived = np.where(
        decoding > 0, np.minimum(np.maximum(begin, got) + decoding, np.maximum(got, start)), got
    )
    prepare_start = np.clip(copy[:, 1], begin, start)
    chain = Chain(
        index=row + before,
        begin=begin,
        prepare_start=prepare_start,
        prepare_end=np.minimum(prepare_start + nanoseconds(steady.prepare_s(part)), start),
        start=start,
        end=end,
        launched_before=launched_before,
        known_before=known_before,
        requested=requested,
        got=got,
        arrived=arrived,
        marked=outside_s > 0,
        entered=np.minimum(got + outside, launched),
        launched=launched,
        copy_start=copy[:, 0],
        copy_end=copy[:, 1],
        opens_epoch=opens_epoch,
    )
    extra = int(np.searchsorted(chain.index, first))  # the step in front
    return Chain(**{name: values[extra:] for name, values in vars(chain).items()})


def _shifted(values: Any, first: Any) -> Any:
    return np.concatenate([np.full(min(1, len(values)), first, dtype=values.dtype), values[:-1]])
