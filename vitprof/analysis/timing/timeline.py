"""Steps for a chart: a few as spans of host, copy and device; one by its figures; many in groups of `k` neighbours, a
power of two. A full group never changes again, so a live chart sends only new groups; when `k` doubles, all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Mask, Series, column
from vitprof.analysis.timing.chain import RESUMED_NS, evaluated, find_chain, nanoseconds
from vitprof.analysis.timing.gaps import CAUSES, IDLE_CAUSES, Gaps, find_gaps
from vitprof.analysis.timing.steady import begin_s, end_s, got_s
from vitprof.recording.columns import TIMED_STAGES, Phase

LANES: tuple[str, ...] = ("host", "copy", "device", "launches")
KINDS: tuple[str, ...] = ("compute", *CAUSES, "launch_idle")


@dataclass(frozen=True)
class Timeline:
    """Spans of time on the monotonic clock, (m,) each, none of length 0. The host waits for data, works and records;
    the device computes, or idles for a cause. A step's many launch bubbles are one span at the end of compute. Only on
    the copy lane, where two copies may, do spans overlap.
    """

    lane: Ints
    kind: Ints
    """Index into `KINDS`; on the device's lane everything but compute is a gap due to that cause."""
    step: Ints
    start_s: Floats
    end_s: Floats

    def only(self, lane: str) -> Timeline:
        there = self.lane == LANES.index(lane)
        return Timeline(
            *(
                values[there]
                for values in (self.lane, self.kind, self.step, self.start_s, self.end_s)
            )
        )


def timeline(steps: Series, phases: Sequence[Phase], first: int, stop: int) -> Timeline:
    """Returns the spans of the steps `first` to `stop`, at most a dozen for each; gaps as `find_gaps` finds them."""
    chain = find_chain(steps, first, stop, resumes=False)
    n = len(chain.index)
    number = np.asarray(steps["step"][chain.index], dtype=np.int64)
    kinds = {kind: np.full(n, at) for at, kind in enumerate(KINDS)}
    outside, host, h2d, compute = (kinds[kind] for kind in ("outside", "host", "h2d", "compute"))
    waiting = np.where(chain.opens_epoch, kinds["epoch_boundary"], kinds["data_wait"])
    between = np.where(chain.marked, outside, kinds["logging"])
    between = np.where(chain.opens_epoch, kinds["epoch_boundary"], between)
    evaluations = evaluated(phases)
    if n:
        earliest = min(chain.begin.min(), chain.launched_before.min())
        last = max(chain.start.max(), chain.requested.max())
        evaluations = evaluations[(evaluations[:, 1] > earliest) & (evaluations[:, 0] < last)]
    evaluating = [
        (np.full(n, start), np.full(n, end), kinds["evaluation"])
        for start, end in evaluations.tolist()
    ]
    launched_before = np.where(chain.known_before, chain.launched_before, chain.begin)
    causes = [  # in the order of precedence, see `find_gaps`
        (chain.prepare_start, chain.prepare_end, compute),
        *evaluating,
        (chain.requested, chain.arrived, waiting),
        (chain.copy_start, chain.copy_end, h2d),
        (np.maximum(chain.arrived, chain.entered), chain.launched, host),
        (chain.begin, launched_before, host),
        (chain.launched_before, chain.requested, between),
        (chain.arrived, chain.entered, outside),
    ]
    of_gap = _cut(chain.begin, chain.start, causes)
    of_host = _cut(
        chain.launched_before,
        chain.requested,
        [*evaluating, (chain.launched_before, chain.requested, between)],
    )
    bubbles = nanoseconds(column(steps, "launch_idle_s")[chain.index])
    every = np.arange(n)
    pieces = (
        ("host", *of_host),
        ("host", every, waiting, chain.requested, chain.got),
        ("host", every, outside, chain.got, chain.entered),
        ("host", every, host, chain.entered, chain.launched),
        ("copy", every, h2d, chain.copy_start, chain.copy_end),
        ("device", every, compute, chain.start, chain.end),
        ("device", *of_gap),
        (
            "launches",
            every,
            kinds["launch_idle"],
            np.maximum(chain.end - bubbles, chain.start),
            chain.end,
        ),
    )
    lane = np.concatenate([np.full(len(piece[1]), LANES.index(piece[0])) for piece in pieces])
    row, kind, start, end = (np.concatenate([piece[i] for piece in pieces]) for i in (1, 2, 3, 4))
    known = end > start
    return Timeline(
        lane[known], kind[known], number[row[known]], start[known] / 1e9, end[known] / 1e9
    )


def _cut(
    start: Ints, end: Ints, claims: Sequence[tuple[Ints, Ints, Ints]]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns row, kind, start and end of the pieces of [start, end), each of the first claim on it, or "other"."""
    edges = [start, end, *(edge for claim in claims for edge in claim[:2])]
    points = np.sort(np.clip(np.stack(edges, axis=1), start[:, None], end[:, None]), axis=1)
    begins = points[:, :-1]
    ends = points[:, 1:]
    covers = [(a[:, None] <= begins) & (ends <= b[:, None]) for a, b, _ in claims]
    kind = np.select(
        covers,
        [np.broadcast_to(k[:, None], begins.shape) for _, _, k in claims],
        KINDS.index("other"),
    )
    row, at = np.nonzero(ends > begins)
    kind = kind[row, at]
    first = np.concatenate(
        [np.ones(min(1, len(row)), dtype=bool), (np.diff(row) > 0) | (np.diff(kind) != 0)]
    )
    last = np.append(first[1:], True)[: len(row)]
    return row[first], kind[first], begins[row, at][first], ends[row, at][last]


@dataclass(frozen=True)
class OneStep:
    """The figures of a step, in seconds; NaN where not known. Moments are on the monotonic clock."""

    number: int
    data_wait_s: float
    """How long the loop was blocked in next(loader) for its batch, or had it while the device still decoded it."""
    decode_wait_s: float
    """The device's part of it; NaN if no batch is decoded on the device."""
    exposed_wait_s: float
    stages_s: Mapping[str, float]
    """Stage of loading -> seconds, for the stages that the loader times; hand-over is the last."""
    made_start_s: float
    made_end_s: float
    requested_s: float
    got_s: float
    worker: int | None
    """The worker process that made it; None if none did, or it is not known."""

    @property
    def made_s(self) -> float:
        return self.made_end_s - self.made_start_s

    @property
    def lay_ready_s(self) -> float:
        """Returns how long the batch was ready before the loop asked for it; negative if the loop asked first."""
        return self.requested_s - self.made_end_s


def one_step(steps: Series, at: int) -> OneStep:
    """Returns the step at position `at` of the series."""
    row = {name: float(values[at]) for name, values in steps.items()}
    stages = {stage: row[f"{stage}_s"] for stage in (*TIMED_STAGES, "hand_over")}
    same = ("data_wait_s", "decode_wait_s", "exposed_wait_s", "made_start_s", "made_end_s")
    return OneStep(
        **{name: row[name] for name in same},
        number=int(row["step"]),
        stages_s={name: seconds for name, seconds in stages.items() if math.isfinite(seconds)},
        requested_s=row["t_start_s"],
        got_s=float(got_s(steps)[at]),
        worker=int(row["worker"]) if math.isfinite(row["worker"]) else None,
    )


def typical_step(steps: Series, keep: Mask) -> int | None:
    """Returns the position of the step in `keep` whose batch took the median time to make; None if no time is known."""
    made = steps["made_end_s"] - steps["made_start_s"]
    at = np.flatnonzero(keep & np.isfinite(made))
    return int(at[np.argsort(made[at], kind="stable")[(len(at) - 1) // 2]]) if len(at) else None


def after_largest_gap(gaps: Gaps) -> int:
    """Returns the position in the series of the step after the largest gap, without evaluation. Needs a gap."""
    return int(gaps.index[np.argmax(gaps.idle_s)])


def step_at(steps: Series, moment_s: float, *, of_wait: bool = False) -> int:
    """Returns the position of the step in or before which the device was at `moment_s`; `of_wait`: the waiting loop."""
    ends = got_s(steps) if of_wait else end_s(steps)
    # a chart's moments are relative to the run's start: a microsecond is more than their rounding
    at = int(
        np.searchsorted(np.maximum.accumulate(np.nan_to_num(ends, nan=-np.inf)), moment_s - 1e-6)
    )
    return min(at, len(ends) - 1)


def group_size(n: int, max_groups: int) -> int:
    """Returns the smallest power of two that puts `n` points in at most `max_groups` groups."""
    return 1 << (max(-(-n // max_groups), 1) - 1).bit_length()


def min_max(y: Floats, start: int, stop: int, k: int) -> Ints:
    """Returns the indices of the lowest and the highest point of each group of `y[start:stop]`, in order of time:
    (groups,) for k = 1, else (2 * groups,). Only a group without numbers gives NaN, twice.
    """
    if k == 1 or start >= stop:
        return np.arange(start, stop)
    part = y[start:stop]
    table = np.pad(part, (0, -len(part) % k), constant_values=np.nan).reshape(-1, k)
    unknown = np.isnan(table)
    low = np.where(unknown, np.inf, table).argmin(axis=1)
    high = np.where(unknown, -np.inf, table).argmax(axis=1)
    pairs = np.sort(np.stack([low, high], axis=1), axis=1)
    return np.asarray((pairs + np.arange(len(table))[:, None] * k).ravel() + start, dtype=np.int64)


FINEST = 512
"""Steps in a group from which its idle time is not split by cause: that takes 1 us for each step of the run."""


@dataclass(frozen=True)
class Slices:
    """Groups of steps on the device's time line, (groups,) without a hole between them. Each is other work (an
    evaluation before its first step), then idle and busy time: sums of its steps, so shares are exact at every zoom.
    """

    start_s: Floats
    """End of the previous group's device work, seconds since the run began."""
    other_s: Floats
    """Time that belongs to no step: evaluation, and the moment after the warm-up in which CPU times are read."""
    causes_s: Floats
    """(causes, groups) idle time by `IDLE_CAUSES`; of more than `FINEST` steps all but data wait is "other"."""
    busy_s: Floats
    end_s: Floats
    wait_s: Floats
    exposed_wait_s: Floats
    """The part of `wait_s` in the idle time."""
    launch_idle_s: Floats
    """The part of `busy_s` in which the device waited for the next launch; 0 where that is not known."""
    first_step: Ints
    n_steps: Ints

    @property
    def idle_s(self) -> Floats:
        return np.asarray(self.causes_s.sum(axis=0))


def slices(series: Series, origin_s: float, start: int, stop: int, k: int) -> Slices:
    """Returns steps `start` to `stop` in groups of `k`, in seconds since `origin_s`; their parts add up exactly."""
    edges = np.arange(start, stop, k)
    last = np.minimum(edges + k, stop) - 1
    local = edges - start

    def total(values: Floats) -> Floats:
        return (
            np.asarray(np.add.reduceat(np.nan_to_num(values), local, axis=-1))
            if len(local)
            else values[..., :0]
        )

    def rows(at: Ints) -> Series:
        return {name: values[at] for name, values in series.items()}

    ends_s = end_s(rows(last))
    start_s = np.where(edges > 0, end_s(rows(np.maximum(edges - 1, 0))), begin_s(rows(edges)))
    causes_s = total(_causes_s(series, start, stop, apart=k <= FINEST))
    busy_s = total(series["compute_s"][start:stop])
    return Slices(
        start_s=start_s - origin_s,
        other_s=np.maximum(ends_s - start_s - causes_s.sum(axis=0) - busy_s, 0.0),
        causes_s=causes_s,
        busy_s=busy_s,
        end_s=ends_s - origin_s,
        wait_s=total(series["data_wait_s"][start:stop]),
        exposed_wait_s=total(series["exposed_wait_s"][start:stop]),
        launch_idle_s=total(column(series, "launch_idle_s")[start:stop]),
        first_step=edges,
        n_steps=last - edges + 1,
    )


def _causes_s(series: Series, start: int, stop: int, *, apart: bool) -> Floats:
    before = max(start - 1, 0)  # see `find_chain`
    part = {name: values[before:stop] for name, values in series.items()}
    causes_s = np.zeros((len(IDLE_CAUSES), stop - before))
    if apart:
        gaps = find_gaps(part, _paused(part))
        causes_s[:, gaps.index] = gaps.causes_ns[:, :-1].T / 1e9
    else:
        waited = np.fmin(part["exposed_wait_s"], part["gap_s"])
        causes_s[IDLE_CAUSES.index("data_wait")] = waited
        causes_s[IDLE_CAUSES.index("other")] = part["gap_s"] - waited
    return causes_s[:, start - before :]


def _paused(steps: Series) -> list[Phase]:
    """Returns the time between steps that belongs to none, such as evaluations, from the steps alone."""
    began = begin_s(steps)[1:]
    ended = end_s(steps)[:-1]
    return [
        Phase("evaluate", ended[at], began[at])
        for at in np.flatnonzero(began - ended > RESUMED_NS / 1e9)
    ]
