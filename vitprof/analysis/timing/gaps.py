"""Where the device idles between steps, and what it was waiting for, in whole nanoseconds.

The gap before a step ends when the step's compute begins. What the device waited for follows from the step's chain of
events on the host's clock: recording and reports of the previous step, data wait, copy, Python and launches. Each
moment of a gap is assigned to one cause, so the causes add up to the gap exactly, and busy + idle is exactly the span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Mask, Series, column
from vitprof.analysis.bootstrap import Interval, ratio_intervals
from vitprof.analysis.timing.chain import covered_before, evaluated, find_chain, union
from vitprof.analysis.timing.steady import steady_state
from vitprof.recording.columns import Phase

CAUSE_DOCS: dict[str, str] = {
    "data_wait": "the loop was blocked in next(loader) for this step's batch, or the device still decoded it",
    "h2d": "the batch was being copied to the device",
    "host": "the batch was in hand and its step not launched yet: Python, launches, optimizer bookkeeping",
    "epoch_boundary": "the loader ended an epoch and began the next: data wait of an epoch's first batch and what "
    "the loop did between the epochs, such as stopping and starting workers",
    "evaluation": "the device worked on the test set: not idle time, and kept apart from it",
    "logging": "vitprof's own recording and reports, from the previous step's launch to the request for this batch",
    "outside": "the script did something outside next(loader) and outside the step that it marks (vitprof.step)",
    "other": "none of these: launched but not begun (launch latency, other programs), or not known",
}
"""Cause -> what happened during that part of a gap."""
CAUSES: tuple[str, ...] = tuple(CAUSE_DOCS)
IDLE_CAUSES: tuple[str, ...] = tuple(c for c in CAUSES if c != "evaluation")
CAUSE_COLUMN: dict[str, int] = {cause: i for i, cause in enumerate(CAUSES)}


@dataclass(frozen=True)
class Gaps:
    """The device's time in steps, one row for each step counted. All times are whole nanoseconds (int64).

    A gap of zero length means that the device still had work queued. Evaluation is in no step's span: the device is
    busy with it, but not with training. `span_ns == busy_ns + idle_ns`, and `evaluation_ns` comes on top.
    """

    index: Ints
    """(n,) position of the step in the series."""
    step: Ints
    """(n,) number of the step whose compute ends the gap."""
    start_ns: Ints
    """(n,) when the gap begins, on the monotonic clock: at the end of the previous step's device work."""
    end_ns: Ints
    """(n,) when the gap ends: when the step's compute begins."""
    compute_ns: Ints
    """(n,) device time of the step's compute, `prepare_ns` included; where rounding makes it overlap the previous step
    it is counted once."""
    prepare_ns: Ints
    """(n,) the part of the gap in which the device prepared the batch: work, not idle time."""
    prepare_start_ns: Ints
    """(n,) when that began."""
    causes_ns: Ints
    """(n, 8) the rest of the gap by cause, in the order of `CAUSES`; each row adds up to end_ns - start_ns -
    prepare_ns."""
    data_wait_ns: Ints
    """(n,) the whole data wait of the step, inside its gap or not, including the device's wait for decoding."""
    exposed_wait_ns: Ints
    """(n,) the part of it inside the step's gap; that of an epoch's first batch counts too."""
    h2d_ns: Ints
    """(n,) the whole copy of the step's batch."""
    exposed_h2d_ns: Ints
    """(n,) the part of it inside the step's gap and in no data wait."""
    launch_idle_s: Floats
    """(n,) part of the step's compute in which the device waited for the next launch, seconds; NaN where that is not
    known. It is part of `compute_ns`, and of no gap."""

    def only(self, keep: Mask) -> Gaps:
        """Returns the gaps of the steps in `keep`, a mask over the series; of `every_gap` as `find_gaps` with `keep`
        has them.
        """
        rows = np.flatnonzero(keep[self.index])
        if len(rows) == len(self.index):
            return self
        return Gaps(**{name: values.T.take(rows, axis=-1).T for name, values in vars(self).items()})

    def summed(self) -> Gaps:
        """Returns a single row with the sums of all rows, starting at 0: every share and every sum is the same.

        For what is kept in memory: a million rows take 160 MB.
        """
        sums: dict[str, Any] = {
            name: np.asarray(values.sum(axis=0, keepdims=True)) for name, values in vars(self).items()
        }
        first = np.zeros(1, dtype=np.int64)
        known = self.launches_s
        return Gaps(
            **sums
            | dict.fromkeys(("index", "step", "start_ns", "prepare_start_ns"), first)
            | {"end_ns": sums["end_ns"] - sums["start_ns"]}
            | {"launch_idle_s": np.array([known.sum() if len(known) else np.nan])}
        )

    @property
    def busy_ns(self) -> int:
        """Returns the time in which the device computed."""
        return int(self.compute_ns.sum())

    @property
    def evaluation_ns(self) -> int:
        """Returns the time of the gaps in which the device evaluated."""
        return int(self.causes_ns[:, CAUSE_COLUMN["evaluation"]].sum())

    @property
    def idle_ns(self) -> int:
        """Returns the time of the gaps without evaluation."""
        return int((self.end_ns - self.start_ns - self.prepare_ns).sum()) - self.evaluation_ns

    @property
    def span_ns(self) -> int:
        """Returns the time of all steps: busy and idle, without evaluation."""
        return self.busy_ns + self.idle_ns

    @property
    def span_s(self) -> float:
        """Returns the same in seconds."""
        return self.span_ns / 1e9

    @property
    def busy_frac(self) -> float:
        """Returns the share of the span in which the device computed; NaN where there is no span."""
        return self._share(self.busy_ns)

    @property
    def idle_frac(self) -> float:
        """Returns the share of the span in which the device idled; NaN where there is no span."""
        return self._share(self.idle_ns)

    @property
    def exposed_wait_frac(self) -> float:
        """Returns the share of the span in which the device idled because of a data wait."""
        return self._share(int(self.exposed_wait_ns.sum()))

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
        return float(inside.sum()) / self.span_s if len(inside) and self.span_ns else math.nan

    @property
    def hidden_wait_ns(self) -> int:
        """Returns the data wait while the device was busy, which cost nothing."""
        return int((self.data_wait_ns - self.exposed_wait_ns).sum())

    def by_step(self, cause: str) -> Floats:
        """Returns the seconds of each step's gap that are due to `cause`, (n,)."""
        return np.asarray(self.causes_ns[:, CAUSE_COLUMN[cause]] / 1e9)

    def seconds(self, cause: str, counted: Mask | None = None) -> float:
        """Returns the seconds of the gaps that are due to `cause`: of all rows, or of those `counted`."""
        of_rows = self.causes_ns[:, CAUSE_COLUMN[cause]]
        return int(of_rows.sum() if counted is None else of_rows @ counted) / 1e9

    def shares(self) -> dict[str, float]:
        """Returns the share of the span by "busy" and `IDLE_CAUSES`; they add up to 1. NaN where there is no span."""
        idle = {cause: self._share(int(self.causes_ns[:, CAUSE_COLUMN[cause]].sum())) for cause in IDLE_CAUSES}
        return {"busy": self.busy_frac} | idle

    def _share(self, ns: int) -> float:
        return ns / self.span_ns if self.span_ns else math.nan


def find_gaps(steps: Series, phases: Sequence[Phase], *, keep: Mask | None = None) -> Gaps:
    """Returns the gaps before the steps of `steps` ((n,) columns of `StepRecord`), by cause.

    Without `keep` the span goes from the first step's compute to the end of the last one's. With `keep`, (n,) bool such
    as `steady_state(steps)`, it is made of the steps in the mask, each from the end of the previous step to its own
    end; if the recorder resumed in between (after an evaluation, after the warm-up) it begins there, as `gap_s` does.
    Steps whose device time is not known (NaN) are left out, and so is the time up to the step after them.

    A moment of a gap that several causes claim goes to the first of: evaluation, data wait, H2D, host, logging,
    outside. The device's own preparation of the batch (`device_prepare_s`) belongs to none of them.
    """
    chain = find_chain(steps, keep=keep)
    evaluations = evaluated(phases)
    prepared = union(np.stack([chain.prepare_start, chain.prepare_end], axis=1))
    apart = union(np.concatenate([evaluations, prepared])) if len(prepared) else evaluations

    def awake(t: Ints) -> Ints:
        """Returns `t` on a clock that stops during evaluations and while the device prepares a batch.

        Both then drop out of all differences.
        """
        return t - covered_before(apart, t) if len(apart) else t

    gap = (chain.begin, chain.start)
    idle = (awake(chain.begin), awake(chain.start))
    prepare = covered_before(prepared, chain.start) - covered_before(prepared, chain.begin)
    evaluation = chain.start - chain.begin - prepare - (idle[1] - idle[0])
    launched_before, asked, arrived, launched, copy_start, copy_end = (
        awake(t)
        for t in (chain.launched_before, chain.asked, chain.arrived, chain.launched, chain.copy_start, chain.copy_end)
    )
    copy, wait = (copy_start, copy_end), (asked, arrived)

    def without_copy(*span: tuple[Ints, Ints]) -> Ints:
        return _meet(idle, *span) - _meet(idle, copy, *span)

    waited = _meet(idle, wait)
    copied = _meet(idle, copy) - _meet(idle, copy, wait)
    # Launches of the previous step after the end of its compute count as host work too.
    still_launching = (idle[0], np.where(chain.told_before, launched_before, idle[0]))
    begins_step = awake(chain.entered)
    hosted = without_copy((np.maximum(arrived, begins_step), launched)) + without_copy(still_launching)
    between = without_copy((launched_before, asked))
    between_epochs = np.where(chain.opens_epoch, waited + between, 0)
    logged = np.where(chain.opens_epoch | chain.tells_step, 0, between)
    outside = np.where(chain.tells_step & ~chain.opens_epoch, between, 0) + without_copy((arrived, begins_step))
    causes = np.empty((len(CAUSES), len(chain.index)), dtype=np.int64).T  # a cause's column in one piece
    causes[:, CAUSE_COLUMN["data_wait"]] = np.where(chain.opens_epoch, 0, waited)
    causes[:, CAUSE_COLUMN["h2d"]] = copied
    causes[:, CAUSE_COLUMN["host"]] = hosted
    causes[:, CAUSE_COLUMN["epoch_boundary"]] = between_epochs
    causes[:, CAUSE_COLUMN["evaluation"]] = evaluation
    causes[:, CAUSE_COLUMN["logging"]] = logged
    causes[:, CAUSE_COLUMN["outside"]] = outside
    others = copied + hosted + between_epochs + np.where(chain.opens_epoch, 0, waited) + logged + outside
    causes[:, CAUSE_COLUMN["other"]] = idle[1] - idle[0] - others
    return Gaps(
        index=chain.index,
        step=np.asarray(steps["step"][chain.index], dtype=np.int64),
        start_ns=gap[0],
        end_ns=gap[1],
        compute_ns=chain.end - chain.start + prepare,
        prepare_ns=prepare,
        prepare_start_ns=chain.prepare_start,
        causes_ns=causes,
        data_wait_ns=chain.got - chain.asked + np.maximum(chain.arrived - np.maximum(chain.got, chain.begin), 0),
        exposed_wait_ns=waited,
        h2d_ns=chain.copy_end - chain.copy_start,
        exposed_h2d_ns=copied,
        launch_idle_s=column(steps, "launch_idle_s")[chain.index],
    )


def every_gap(steps: Series, phases: Sequence[Phase]) -> Gaps:
    """Returns the gaps of all steps: compute them once, and narrow them with `Gaps.only` for each figure of a run."""
    return find_gaps(steps, phases, keep=np.ones(len(steps["step"]), dtype=bool))


class RunGaps(NamedTuple):
    """The gaps of a run, which its summary, its verdict and its sparkline share."""

    every: Gaps
    """Of all steps whose device time is known."""
    steady: Gaps
    """Of the steady ones among them."""

    @classmethod
    def of(cls, steps: Series, phases: Sequence[Phase]) -> RunGaps:
        """Returns the gaps of these steps."""
        every = every_gap(steps, phases)
        return cls(every, every.only(steady_state(steps)))


def idle_interval(gaps: Gaps) -> dict[str, Interval]:
    """Returns "idle" and each of `IDLE_CAUSES` as a share of the span, with its 95% interval (block bootstrap over
    steps).

    It has "launch_idle" too, if that is known.
    """
    causes = gaps.causes_ns[:, [CAUSE_COLUMN[cause] for cause in IDLE_CAUSES]].T
    idle = causes.sum(axis=0)
    parts = {"idle": idle / 1e9} | dict(zip(IDLE_CAUSES, causes / 1e9, strict=True))
    if len(gaps.launches_s):
        parts["launch_idle"] = gaps.launches_s
    found = ratio_intervals(np.stack(list(parts.values())), (idle + gaps.compute_ns) / 1e9)
    return dict(zip(parts, found, strict=True))


def _meet(*spans: tuple[Ints, Ints]) -> Ints:
    """Returns the length of the overlap of each row's spans, (n,) ns."""
    start, end = spans[0]
    for a, b in spans[1:]:
        start, end = np.maximum(start, a), np.minimum(end, b)
    return np.asarray(np.maximum(end - start, 0))
