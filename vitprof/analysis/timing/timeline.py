"""A few steps as spans of time for a chart: of the host, the copy, the device and its launch bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Mask, Series, column
from vitprof.analysis.timing.chain import Chain, evaluated, find_chain
from vitprof.analysis.timing.gaps import CAUSES
from vitprof.analysis.timing.spans import Spans, covered_before, nanoseconds
from vitprof.recording.columns import Phase

LANES: tuple[str, ...] = ("host", "copy", "device", "launches")
KINDS: tuple[str, ...] = ("compute", *CAUSES, "launch_idle")


@dataclass(frozen=True)
class Timeline:
    """Spans of time on the monotonic clock, (m,) each, none of length 0.

    The host waits for data, works and records; the copy lane copies; the device computes, or idles for a cause. The
    launches' lane has the launch bubbles of a step, if they are known: how long the device waited for launches during
    the step's compute. There were many short ones; they are drawn as one span of the same length, at the end of
    compute. Spans of one lane do not overlap, except on the copy lane where two copies do.
    """

    lane: Ints
    """Index into `LANES`."""
    kind: Ints
    """Index into `KINDS`; on the device's lane everything but compute is a gap due to that cause."""
    step: Ints
    """Number of the step it belongs to."""
    start_s: Floats
    end_s: Floats

    def only(self, lane: str) -> Timeline:
        """Returns the spans of one lane."""
        there = self.lane == LANES.index(lane)
        return Timeline(*(values[there] for values in (self.lane, self.kind, self.step, self.start_s, self.end_s)))


def timeline(steps: Series, phases: Sequence[Phase], first: int, stop: int) -> Timeline:
    """Returns the spans of the steps at positions `first` to `stop` of the series: at most a dozen for each step.

    Gaps are those that `find_gaps` finds over the whole series, moment by moment.
    """
    # With one step more in front, its launch and the end of its compute are known.
    before = max(first - 1, 0)
    chain = find_chain({name: values[before:stop] for name, values in steps.items()})
    mine = chain.index + before >= first
    chain = Chain(**{name: values[mine] for name, values in vars(chain).items()})
    number = np.asarray(steps["step"][before:stop], dtype=np.int64)[chain.index]
    kinds = ("epoch_boundary", "data_wait", "logging", "outside")
    boundary, wait, log, outside = (np.full(len(number), KINDS.index(kind)) for kind in kinds)
    waiting = np.where(chain.opens_epoch, boundary, wait)
    between = np.where(chain.opens_epoch, boundary, np.where(chain.tells_step, outside, log))
    host, h2d, compute = (np.full(len(number), KINDS.index(kind)) for kind in ("host", "h2d", "compute"))
    evaluations = evaluated(phases)
    gap_row, gap_kind, gap_start, gap_end = _gap_pieces(chain, evaluations, waiting, between)
    between_row, between_kind, between_start, between_end = _between(chain, evaluations, between)
    bubbles = nanoseconds(column(steps, "launch_idle_s")[before:stop][chain.index])
    launches = np.full(len(number), KINDS.index("launch_idle"))
    pieces = (
        ("host", between_kind, number[between_row], between_start, between_end),
        ("host", waiting, number, chain.asked, chain.got),
        ("host", outside, number, chain.got, chain.entered),
        ("host", host, number, chain.entered, chain.launched),
        ("copy", h2d, number, chain.copy_start, chain.copy_end),
        ("device", compute, number, chain.start, chain.end),
        ("device", gap_kind, number[gap_row], gap_start, gap_end),
        ("launches", launches, number, np.maximum(chain.end - bubbles, chain.start), chain.end),
    )
    lane = np.concatenate([np.full(len(piece[1]), LANES.index(piece[0])) for piece in pieces])
    kind, step, start, end = (np.concatenate([np.asarray(piece[i]) for piece in pieces]) for i in (1, 2, 3, 4))
    there = end > start
    return Timeline(lane[there], kind[there], step[there], start[there] / 1e9, end[there] / 1e9)


def _gap_pieces(chain: Chain, evaluations: Spans, waiting: Ints, between: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns row of the chain, kind, start and end of each piece of each gap; neighbours of one kind are one piece."""
    n = len(chain.begin)
    near = _near(evaluations, chain.begin, chain.start)
    launched_before = np.where(chain.told_before, chain.launched_before, chain.begin)
    edges = [chain.begin, chain.start, launched_before, chain.launched_before, chain.asked, chain.got, chain.launched]
    edges += [chain.arrived, chain.entered, chain.prepare_start, chain.prepare_end]
    edges += [chain.copy_start, chain.copy_end, *(np.full(n, edge) for edge in near.ravel())]
    points = np.sort(np.clip(np.stack(edges, axis=1), chain.begin[:, None], chain.start[:, None]), axis=1)
    start, end = points[:, :-1], points[:, 1:]

    def within(a: Ints, b: Ints) -> Mask:
        return np.asarray((a[:, None] <= start) & (end <= b[:, None]))

    evaluating = covered_before(near, end) - covered_before(near, start) == end - start
    claims: list[tuple[Mask, Ints | int]] = [  # in the order of precedence, see `find_gaps`
        (within(chain.prepare_start, chain.prepare_end), KINDS.index("compute")),
        (evaluating, KINDS.index("evaluation")),
        (within(chain.asked, chain.arrived), waiting[:, None]),
        (within(chain.copy_start, chain.copy_end), KINDS.index("h2d")),
        (within(np.maximum(chain.arrived, chain.entered), chain.launched), KINDS.index("host")),
        (within(chain.begin, launched_before), KINDS.index("host")),
        (within(chain.launched_before, chain.asked), between[:, None]),
        (within(chain.arrived, chain.entered), KINDS.index("outside")),
    ]
    kind = np.select([c for c, _ in claims], [np.broadcast_to(k, start.shape) for _, k in claims], KINDS.index("other"))
    return _joined(kind, start, end)


def _between(chain: Chain, evaluations: Spans, kinds: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns the same for the time between the launch of the previous step and the request for the batch."""
    first, last = chain.launched_before, chain.asked
    near = _near(evaluations, first, last)
    edges = [first, last, *(np.full(len(first), edge) for edge in near.ravel())]
    points = np.sort(np.clip(np.stack(edges, axis=1), first[:, None], last[:, None]), axis=1)
    start, end = points[:, :-1], points[:, 1:]
    evaluating = covered_before(near, end) - covered_before(near, start) == end - start
    return _joined(np.where(evaluating, KINDS.index("evaluation"), kinds[:, None]), start, end)


def _near(evaluations: Spans, start: Ints, end: Ints) -> Spans:
    """Returns the evaluations that may meet any of these spans."""
    if not len(start):
        return evaluations[:0]
    return np.asarray(evaluations[(evaluations[:, 1] > start.min()) & (evaluations[:, 0] < end.max())])


def _joined(kind: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns row, kind, start and end of the pieces (n, m) that have a length; neighbours of one kind in a row are
    one.
    """
    row, column = np.nonzero(end > start)
    kind, start, end = kind[row, column], start[row, column], end[row, column]
    fresh = np.concatenate([np.ones(min(1, len(row)), dtype=bool), (np.diff(row) > 0) | (np.diff(kind) != 0)])
    last = np.concatenate([fresh[1:], np.ones(min(1, len(row)), dtype=bool)])
    return row[fresh], kind[fresh], start[fresh], end[last]
