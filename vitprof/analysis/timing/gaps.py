"""Where the device idles between steps, and what for, in whole nanoseconds. The gap before a step ends when its compute
begins. Each moment of it is assigned to one cause, by the step's chain of events on the host's clock, so the causes add
up to the gap, and busy + idle to the span, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from vitprof.analysis.arrays import Floats, Interval, Ints, Mask, Series, column
from vitprof.analysis.intervals import share_intervals
from vitprof.analysis.timing.chain import (
    LONG_AGO,
    Chain,
    Spans,
    covered_before,
    evaluated,
    find_chain,
    union,
)
from vitprof.analysis.timing.steady import epoch_starts, steady_state, training
from vitprof.recording.columns import Phase

CAUSES = ("data_wait", "h2d", "host", "epoch_boundary", "logging", "outside", "other", "evaluation")
"""What a moment of a gap is due to.

data_wait: the loop was blocked in next(loader) for this step's batch, or the device still decoded it. h2d: the batch
was being copied to the device. host: the batch was in hand and its step not launched yet: Python, launches, optimizer
bookkeeping. epoch_boundary: the loader ended an epoch and began the next: data wait of an epoch's first batch and what
the loop did between the epochs, such as stopping and starting workers. logging: vitprof's own recording and reports,
from the previous step's launch to the request for this batch. outside: the script did something outside next(loader)
and outside the step that it marks (vitprof.step). other: none of these: launched but not begun (launch latency, other
programs), or not known. evaluation: the device worked on the test set: not idle time, and kept apart from it.
"""
IDLE_CAUSES = CAUSES[:-1]
WAITS = ("data_wait", "h2d", "epoch_boundary")
"""Those that a verdict counts as waiting for data."""
BLOCK = 2**15
"""Steps that are worked out together: their columns stay in the processor's cache."""


@dataclass(frozen=True)
class Gaps:
    """The device's time in steps, a row for each, int64 ns. A gap of zero length: the device still had work queued.
    `span_ns == busy_ns + idle_ns`; `evaluation_ns`, in which the device is busy but not with training, comes on top.
    """

    index: Ints
    """(n,) position of the step in the series."""
    end_ns: Ints
    """(n,) when the gap ends: when the step's compute begins, on the monotonic clock."""
    compute_ns: Ints
    """(n,) device time of the step's compute, `prepare_ns` included; where rounding makes it
    overlap the previous step it is counted once."""
    prepare_ns: Ints
    """(n,) the part of the gap in which the device prepared the batch: work, not idle time."""
    prepare_start_ns: Ints
    data_wait_ns: Ints
    """(n,) the whole data wait of the step, inside its gap or not, including the device's wait for decoding."""
    exposed_wait_ns: Ints
    """(n,) the part of it inside the step's gap; that of an epoch's first batch counts too."""
    causes_ns: Ints
    """(n, 8) the gap without `prepare_ns` by cause, in the order of `CAUSES`."""
    launch_idle_s: Floats
    """(n,) seconds of `compute_ns`, not of a gap, in which the device waited for the next launch; NaN if not known."""

    def only(self, keep: Mask) -> Gaps:
        """Returns the gaps of the steps in `keep`, a mask over the series."""
        rows = np.flatnonzero(keep[self.index])
        if len(rows) == len(self.index):
            return self
        return Gaps(**{name: values.T.take(rows, axis=-1).T for name, values in vars(self).items()})

    def summed(self) -> Gaps:
        """Returns a row of sums, with the same shares, to keep in memory: a million rows take 130 MB."""
        known = self.launches_s
        sums = {
            name: np.asarray(values.sum(axis=0, keepdims=True))
            for name, values in vars(self).items()
        }
        return Gaps(**sums | {"launch_idle_s": np.array([known.sum() if len(known) else np.nan])})

    @property
    def busy_ns(self) -> int:
        return int(self.compute_ns.sum())

    @property
    def evaluation_ns(self) -> int:
        return int(self.causes_ns[:, -1].sum())

    @property
    def idle_ns(self) -> int:
        return int(self.causes_ns[:, :-1].sum())

    @property
    def span_ns(self) -> int:
        return self.busy_ns + self.idle_ns

    @property
    def span_s(self) -> float:
        return self.span_ns / 1e9

    @property
    def idle_s(self) -> Floats:
        """Returns the seconds of each step's gap without evaluation, (n,)."""
        return np.asarray(self.causes_ns[:, :-1].sum(axis=1) / 1e9)

    @property
    def launches_s(self) -> Floats:
        """Returns (n,) `launch_idle_s`, with the mean of the known ones for steps without; empty if none is known."""
        known = np.isfinite(self.launch_idle_s)
        if not known.any():
            return self.launch_idle_s[:0]
        return np.where(known, self.launch_idle_s, self.launch_idle_s[known].mean())

    @property
    def launch_idle_frac(self) -> float:
        """Returns the share of the span in which the device waited for launches inside a step; NaN if not known."""
        inside = self.launches_s
        return float(inside.sum()) / self.span_s if len(inside) and self.span_ns else np.nan

    @property
    def hidden_wait_ns(self) -> int:
        """Returns the data wait while the device was busy, which cost nothing."""
        return int((self.data_wait_ns - self.exposed_wait_ns).sum())

    def by_step(self, cause: str) -> Floats:
        """Returns the seconds of each step's gap that are due to `cause`, (n,)."""
        return np.asarray(self.causes_ns[:, CAUSES.index(cause)] / 1e9)

    def seconds(self, cause: str) -> float:
        """Returns the seconds of all gaps that are due to `cause`."""
        return int(self.causes_ns[:, CAUSES.index(cause)].sum()) / 1e9

    def shares(self) -> dict[str, float]:
        """Returns the share of the span by "busy" and `IDLE_CAUSES`; they add up to 1. NaN where there is no span."""
        parts = dict(
            zip(
                ("busy", *IDLE_CAUSES),
                (self.busy_ns, *self.causes_ns[:, :-1].sum(axis=0)),
                strict=True,
            )
        )
        span_ns = self.span_ns
        return {name: int(ns) / span_ns if span_ns else np.nan for name, ns in parts.items()}


def find_gaps(steps: Series, phases: Sequence[Phase]) -> Gaps:
    """Returns the gaps by cause before the `steps` ((n,) columns of `StepRecord`) whose device time is known; the time
    of each as in `find_chain`. A moment that several causes claim goes to the first of: evaluation, data wait, H2D,
    host, logging, outside. The device's own preparation (`device_prepare_s`) belongs to none.
    """
    n = len(steps["step"])
    m = 0
    reach = LONG_AGO
    evaluations = evaluated(phases)
    table = np.empty((7 + len(CAUSES), n), dtype=np.int64)
    for first in range(0, n, BLOCK):
        chain = find_chain(steps, first, min(first + BLOCK, n), reach=reach)
        if k := len(chain.index):
            reach = int(chain.end[-1])
            for row, values in zip(table, _rows(chain, evaluations), strict=True):
                row[m : m + k] = values
            m += k
    index, end, compute, prepare, prepare_start, data_wait, exposed_wait = table[:7, :m]
    launch_idle_s = column(steps, "launch_idle_s")[index]
    return Gaps(
        index,
        end,
        compute,
        prepare,
        prepare_start,
        data_wait,
        exposed_wait,
        table[7:, :m].T,
        launch_idle_s,
    )


def _rows(chain: Chain, evaluations: Spans) -> Sequence[Ints]:
    prepared = union(np.stack([chain.prepare_start, chain.prepare_end], axis=1))
    apart = union(np.concatenate([evaluations, prepared])) if len(prepared) else evaluations

    def awake(t: Ints) -> Ints:
        """Returns `t` on a clock that stops during evaluations and while the device prepares a batch."""
        return t - covered_before(apart, t) if len(apart) else t

    idle = (awake(chain.begin), awake(chain.start))
    prepare = covered_before(prepared, chain.start) - covered_before(prepared, chain.begin)
    evaluation = chain.start - chain.begin - prepare - (idle[1] - idle[0])
    launched_before, requested, arrived, begins_step, launched = (
        awake(t)
        for t in (
            chain.launched_before,
            chain.requested,
            chain.arrived,
            chain.entered,
            chain.launched,
        )
    )
    copy = (awake(chain.copy_start), awake(chain.copy_end))
    wait = (requested, arrived)

    def without_copy(*span: tuple[Ints, Ints]) -> Ints:
        return _meet(idle, *span) - _meet(idle, copy, *span)

    waited = _meet(idle, wait)
    copied = _meet(idle, copy) - _meet(idle, copy, wait)
    # Launches of the previous step after the end of its compute count as host work too.
    still_launching = (idle[0], np.where(chain.known_before, launched_before, idle[0]))
    hosted = without_copy((np.maximum(arrived, begins_step), launched)) + without_copy(
        still_launching
    )
    between = without_copy((launched_before, requested))
    between_epochs = np.where(chain.opens_epoch, waited + between, 0)
    data_wait = np.where(chain.opens_epoch, 0, waited)
    logged = np.where(chain.opens_epoch | chain.marked, 0, between)
    outside = np.where(chain.marked & ~chain.opens_epoch, between, 0) + without_copy(
        (arrived, begins_step)
    )
    causes = [data_wait, copied, hosted, between_epochs, logged, outside]
    other = idle[1] - idle[0] - sum(causes)
    compute = chain.end - chain.start + prepare
    whole_wait = (
        chain.got
        - chain.requested
        + np.maximum(chain.arrived - np.maximum(chain.got, chain.begin), 0)
    )
    figures = (chain.index, chain.start, compute, prepare, chain.prepare_start, whole_wait, waited)
    return *figures, *causes, other, evaluation


def _meet(*spans: tuple[Ints, Ints]) -> Ints:
    start, end = spans[0]
    for a, b in spans[1:]:
        start = np.maximum(start, a)
        end = np.minimum(end, b)
    return np.asarray(np.maximum(end - start, 0))


class RunGaps(NamedTuple):
    """The gaps of a run, which its summary, its verdict and its sparkline share."""

    every: Gaps
    training: Gaps
    """Those of the steady steps and of epoch starts: the wall clock of training."""
    steady: Gaps

    @classmethod
    def of(cls, steps: Series, phases: Sequence[Phase]) -> RunGaps:
        every = find_gaps(steps, phases)
        return cls(every, every.only(training(steps)), every.only(steady_state(steps)))


@dataclass(frozen=True)
class TrainingTime:
    """The wall clock of training in parts, as charts and tables show it."""

    gaps: Gaps
    """Those of the steady steps and of epoch starts, divided as `divided_at_starts` says."""
    starts: Mask
    """(n,) which of them begin an epoch."""

    @property
    def n_starts(self) -> int:
        return int(self.starts.sum())

    def intervals(self) -> dict[str, Interval]:
        """Returns `idle_interval` of them."""
        return idle_interval(self.gaps, self.starts)


def training_time(
    steps: Series, phases: Sequence[Phase], every: Gaps | None = None
) -> TrainingTime:
    """Returns the wall clock of training of these steps. `every`: all their gaps, if already known."""
    if every is None:
        every = find_gaps(steps, phases)
    gaps = every.only(training(steps))
    starts = epoch_starts(steps)[gaps.index]
    return TrainingTime(divided_at_starts(gaps, starts), starts)


def excess_of_starts_s(idle_s: Floats, starts: Mask) -> float:
    """Returns by how many seconds epoch starts waited longer, all together, than as many other steps.

    `idle_s`: (n,) what each step waited for data and copies.
    """
    n_starts = int(starts.sum())
    if not n_starts or n_starts == len(starts):
        return 0.0
    usual_s = float(idle_s[~starts].mean())
    return max(0.0, float(idle_s[starts].sum()) - n_starts * usual_s)


def divided_at_starts(gaps: Gaps, starts: Mask) -> Gaps:
    """Returns the gaps with those that begin an epoch divided as a verdict divides them.

    A wait as long as in other steps is data_wait, what is beyond it is epoch_boundary, and what the
    loop did between the epochs is outside. So a chart shows the figures of the answer beside it.
    `starts`: (n,) which of the gaps begin an epoch.
    """
    boundary_ns = np.where(starts, gaps.causes_ns[:, CAUSES.index("epoch_boundary")], 0)
    waited_ns = np.minimum(gaps.exposed_wait_ns, boundary_ns)
    whole_ns = int(waited_ns.sum())
    if not whole_ns:
        return gaps
    copied_ns = gaps.causes_ns[:, CAUSES.index("h2d")]
    excess_s = excess_of_starts_s((gaps.exposed_wait_ns + copied_ns) / 1e9, starts)
    beyond_frac = min(1.0, excess_s * 1e9 / whole_ns)
    beyond_ns = np.rint(waited_ns * beyond_frac).astype(np.int64)
    causes_ns = gaps.causes_ns.copy()
    causes_ns[:, CAUSES.index("outside")] += boundary_ns - waited_ns
    causes_ns[:, CAUSES.index("data_wait")] += waited_ns - beyond_ns
    causes_ns[:, CAUSES.index("epoch_boundary")] -= boundary_ns - beyond_ns
    return replace(gaps, causes_ns=causes_ns)


def idle_interval(gaps: Gaps, starts: Mask) -> dict[str, Interval]:
    """Returns "idle", each of `IDLE_CAUSES`, and "waits" for data and copies together, as shares of
    the span, each with its 95% interval; "launch_idle" too, if that is known. `starts`: (n,) which
    of the gaps begin an epoch.
    """
    causes = gaps.causes_ns[:, :-1].T
    idle = causes.sum(axis=0)
    waits = causes[[IDLE_CAUSES.index(cause) for cause in WAITS]].sum(axis=0)
    parts = {"idle": idle / 1e9, "waits": waits / 1e9}
    parts |= dict(zip(IDLE_CAUSES, causes / 1e9, strict=True))
    if len(gaps.launches_s):
        parts["launch_idle"] = gaps.launches_s
    intervals = share_intervals(list(parts.values()), (idle + gaps.compute_ns) / 1e9, starts)
    return dict(zip(parts, intervals, strict=True))
