"""A few steps as spans of time for a chart: of the host, the copy, the device and its launch bubbles; and one step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Mask, Series, column
from vitprof.analysis.timing.chain import Chain, Spans, covered_before, evaluated, find_chain, nanoseconds
from vitprof.analysis.timing.gaps import CAUSE_COLUMN, CAUSES, Gaps
from vitprof.analysis.timing.steady import end_s, got_s
from vitprof.recording.columns import TIMED_STAGES, Phase

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


@dataclass(frozen=True)
class OneStep:
    """The figures of a step, in seconds; NaN where not known. Moments are on the monotonic clock."""

    number: int
    """Number of the step in the run."""
    data_wait_s: float
    """How long the loop was blocked in next(loader) for its batch, or had it while the device still decoded it."""
    decode_wait_s: float
    """The device's part of it; NaN if no batch is decoded on the device."""
    exposed_wait_s: float
    """The part of the data wait in which the device idled."""
    h2d_s: float
    compute_s: float
    gap_s: float
    """How long the device idled before it."""
    step_s: float
    stages_s: Mapping[str, float]
    """Stage of loading -> seconds, for the stages that the loader times; hand-over is the last."""
    made_start_s: float
    """When the loader began to make the batch."""
    made_end_s: float
    """When the batch was made."""
    asked_s: float
    """When the loop asked for the batch."""
    got_s: float
    """When the loop had it."""
    worker: int | None
    """The worker process that made it; None if none did, or it is not known."""
    queue_depth: float
    """Batches that were ready when the loop asked."""

    @property
    def made_s(self) -> float:
        """Returns the seconds that making the batch took."""
        return self.made_end_s - self.made_start_s

    @property
    def lay_ready_s(self) -> float:
        """Returns how long the batch was ready before the loop asked for it; negative if the loop asked first."""
        return self.asked_s - self.made_end_s


OF_A_STEP = (
    *("data_wait_s", "decode_wait_s", "exposed_wait_s", "h2d_s", "compute_s", "gap_s", "step_s"),
    *("made_start_s", "made_end_s", "queue_depth"),
)
"""Fields of `OneStep` that are columns of the same name."""


def one_step(steps: Series, at: int) -> OneStep:
    """Returns the step at position `at` of the series."""

    def value(name: str) -> float:
        return float(steps[name][at])

    stages = {stage: value(f"{stage}_s") for stage in (*TIMED_STAGES, "hand_over")}
    worker = value("worker")
    return OneStep(
        number=int(value("step")),
        stages_s={name: seconds for name, seconds in stages.items() if math.isfinite(seconds)},
        asked_s=value("t_start_s"),
        got_s=float(got_s(steps)[at]),
        worker=int(worker) if math.isfinite(worker) else None,
        **{name: value(name) for name in OF_A_STEP},
    )


def typical_step(steps: Series, keep: Mask) -> int | None:
    """Returns the position of the step in `keep` whose batch took the median time to make; None if no time is known."""
    made = steps["made_end_s"] - steps["made_start_s"]
    at = np.flatnonzero(keep & np.isfinite(made))
    return int(at[np.argsort(made[at], kind="stable")[(len(at) - 1) // 2]]) if len(at) else None


def after_largest_gap(steps: Series, gaps: Gaps) -> int:
    """Returns the position in `steps` of the step after the largest of `gaps`, without evaluation. Needs a gap."""
    idle_ns = gaps.end_ns - gaps.start_ns - gaps.prepare_ns - gaps.causes_ns[:, CAUSE_COLUMN["evaluation"]]
    return int(np.searchsorted(steps["step"], gaps.step[int(np.argmax(idle_ns))]))


def step_at(steps: Series, moment_s: float, *, of_wait: bool = False) -> int:
    """Returns the position of the step that the device was in, or idled before, at `moment_s`.

    With `of_wait` it is that of the step whose batch the loop waited for.
    """
    ends = got_s(steps) if of_wait else end_s(steps)
    # a chart's moments are relative to the run's start: a microsecond is more than their rounding
    at = int(np.searchsorted(np.maximum.accumulate(np.nan_to_num(ends, nan=-np.inf)), moment_s - 1e-6))
    return min(at, len(ends) - 1)
