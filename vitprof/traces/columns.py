"""The columns of step records from the loop of a trace and the work of its device.

The marks of a step are those that a recording has of a loop that is watched, so that
`measure.step_columns.derive` makes the same figures of both:

* `t_start`, `t_got`: the requests for its batches, as if all that it waited for before it did anything
  had been requested one right after the other.
* `copy_start`, `copy_end`: the copies to the device that were launched for it before its first kernel;
  where another thread or an earlier step launched them, those in the gap before it.
* `compute_start`: when its first kernel began. A watched loop has a mark where the batch came instead;
  what lies between the two is time in which the device waits for Python (`gaps.CAUSES`: host).
* `compute_end`: the end of what it launched until its optimizer had stepped. Later launches count as
  long as the device has not caught up when the next batch is requested: an average of the weights is
  the step's work, a metric after it is none (`outside_s`).
* `launch_idle_s`: bubbles in the compute before work that was launched after the bubble had begun.
  What was queued before, and still came a microsecond later, is the device's own pace.

Without work of a device the loop's own clock is that of the device: the CPU trains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Ints
from vitprof.analysis.timing.chain import Spans, covered_before, from_seconds, nanoseconds, union
from vitprof.measure.step_columns import Columns, derive
from vitprof.recording.columns import LAG_FRAC, LEAST_LAG_S
from vitprof.traces.events import DeviceWork, HostSpan, WorkKind
from vitprof.traces.loop import Loop, LoopStep

ONE_AFTER_ANOTHER_S = 200e-6
"""A request that follows the one before this soon (s) is waited for together with it, where no work of a
device tells."""
LEAST_KNOWN_FRAC = 0.9
"""Share of the device's work whose launch must be known for bubbles to be told from its own pace, and the end of
a step from what comes after it."""
WARMUP_STEPS = 5
"""Steps at the beginning of a training that count in no figure, as in every recording."""
DEVICE_COLUMNS = (
    "h2d_s",
    "h2d_start_s",
    "compute_start_s",
    "compute_s",
    "gap_s",
    "exposed_wait_s",
    "launch_idle_s",
)
"""What is not known of a device that is not in the trace."""
ROUNDING_S = 1e-6
"""How far (s) times of the host and the device may be off that come right after one another."""
NAN = math.nan


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The marks of a step, by their names in `measure.step_columns`; seconds, NaN where not known."""

    t_start: float
    t_got: float
    copy_start: float
    copy_end: float
    compute_start: float
    compute_end: float
    t_launched: float
    previous_end: float
    outside_s: float
    launch_idle_s: float
    other_wait_s: float
    other_exposed_s: float


@dataclass(frozen=True, slots=True)
class _Waits:
    """The requests of a step."""

    leading: tuple[HostSpan, ...]
    """Those before it did anything with a batch."""
    later: tuple[HostSpan, ...]
    """Those after that: the device may work meanwhile."""

    @property
    def leading_s(self) -> float:
        return sum(fetch.end_s - fetch.start_s for fetch in self.leading)


@dataclass(frozen=True, slots=True)
class _Before:
    """What a step leaves to the one after it."""

    end_s: float = NAN
    """When the device was done with it."""
    left_s: float = NAN
    """Since when the script does something else; NaN where the device still worked on the step as the
    next batch was requested."""


def columns_of(loop: Loop, work: DeviceWork, *, batch_size: int = 0) -> Columns:
    """Returns the columns of step records, (n,) each: see `recording.columns.StepRecord`.

    `batch_size`: samples of a batch; 0 where that is not known.
    """
    times = _Device(work).times(loop) if len(work) else _host_times(loop)
    steps = loop.steps
    numbers = np.arange(len(steps), dtype=np.float64)
    marks: dict[str, Floats] = {
        "step": numbers,
        "epoch": np.array([float(step.epoch) for step in steps]),
        "warmup": (numbers < n_warmup(loop)).astype(np.float64),
        "samples": np.array([float(step.n_batches * batch_size) for step in steps]),
    }
    for name in StepTimes.__slots__:
        marks[name] = np.array([getattr(each, name) for each in times], dtype=np.float64)
    columns = derive(marks)
    # `derive` would take a wait that is not known for one that is exposed as a whole.
    is_known = np.isfinite(columns["data_wait_s"]) & np.isfinite(columns["compute_start_s"])
    columns["exposed_wait_s"] = np.where(is_known, columns["exposed_wait_s"], np.nan)
    return columns


def without_device(columns: Columns) -> Columns:
    """Returns the columns of steps whose device is not in the trace: what it did is not known."""
    unknown = np.full(len(columns["step"]), np.nan)
    return {**columns, **dict.fromkeys(DEVICE_COLUMNS, unknown)}


def n_warmup(loop: Loop) -> int:
    """Returns how many of the first steps count in no figure: the warm-up of the training, as far as it
    is in the trace. The very first step never counts, since its beginning was not seen."""
    if loop.first_iteration is None:
        return WARMUP_STEPS
    return max(1, WARMUP_STEPS - loop.first_iteration)


def _host_times(loop: Loop) -> list[StepTimes]:
    """Returns the marks of steps that the CPU trains."""
    times = list[StepTimes]()
    before = _Before()
    for step in loop.steps:
        waits = _waits_of_host(step)
        received_s = _received(step, waits, loop)
        requested_s = received_s - waits.leading_s
        end_s = step.next_begin_s if step.updated is None else step.updated.end_s
        later_s = sum(fetch.end_s - fetch.start_s for fetch in waits.later)
        times.append(
            StepTimes(
                t_start=step.begin_s if math.isnan(requested_s) else requested_s,
                t_got=received_s,
                copy_start=received_s,
                copy_end=received_s,
                compute_start=received_s,
                compute_end=end_s,
                t_launched=end_s,
                previous_end=_gap_since(step, requested_s, before),
                outside_s=_outside(step, requested_s, before),
                launch_idle_s=NAN,
                other_wait_s=later_s,
                other_exposed_s=later_s,
            )
        )
        before = _Before(end_s, end_s)
    return times


def _waits_of_host(step: LoopStep) -> _Waits:
    """Returns the requests of a step: those that follow each other at once are waited for together. Of
    those that end an epoch and begin one, what the script does between is no work of the step."""
    fetches = step.fetches
    n_leading = min(1, len(fetches))
    if step.n_batches < len(fetches):
        n_leading = 1 + len(fetches) - step.n_batches
    while n_leading < len(fetches):
        pause_s = fetches[n_leading].start_s - fetches[n_leading - 1].end_s
        if pause_s > ONE_AFTER_ANOTHER_S:
            break
        n_leading += 1
    return _Waits(fetches[:n_leading], fetches[n_leading:])


def _received(step: LoopStep, waits: _Waits, loop: Loop) -> float:
    """Returns when a step had the batches that it waited for; NaN where that was not seen."""
    if waits.leading:
        return waits.leading[-1].end_s
    return step.begin_s if loop.loader_class else NAN


def _gap_since(step: LoopStep, requested_s: float, before: _Before) -> float:
    """Returns where the gap before a step counts from: where the one before ended; where it was
    requested, if it is the first of all, or an evaluation was between them."""
    if not step.after_evaluation and not math.isnan(before.end_s):
        return before.end_s
    since_s = step.begin_s if math.isnan(requested_s) else requested_s
    return since_s if math.isnan(before.end_s) else max(since_s, before.end_s)


def _outside(step: LoopStep, requested_s: float, before: _Before) -> float:
    """Returns for how long the script did something else before a step; NaN where that is not known,
    and where the time is none of the training's."""
    if step.after_evaluation or math.isnan(before.left_s):
        return NAN
    outside_s = requested_s - before.left_s
    return outside_s if outside_s > 0 else NAN


class _Device:
    """The work of a device, step by step."""

    def __init__(self, work: DeviceWork) -> None:
        self._work = work
        self._order = np.argsort(work.launched_s, kind="stable")
        """The pieces of work in the order of their launches."""
        self._launched_s = work.launched_s[self._order]
        self._reached_s = np.maximum.accumulate(work.end_s[self._order])
        """When each of them and all that were launched before were done."""
        self._busy: Spans = union(from_seconds(work.start_s, work.end_s))
        self._copies = np.flatnonzero(work.kind == WorkKind.TO_DEVICE)
        self._copy_starts_s = work.start_s[self._copies]
        took_s = work.end_s[self._copies] - self._copy_starts_s
        self._longest_copy_s = float(took_s.max()) if len(took_s) else 0.0
        self._bubbles_s, self._lost_s = _launch_bubbles(work)
        self._knows_launches = work.known_launches_frac >= LEAST_KNOWN_FRAC

    def times(self, loop: Loop) -> list[StepTimes]:
        """Returns the marks of all steps of a loop."""
        times = list[StepTimes]()
        before = _Before()
        for step in loop.steps:
            of_step, before = self._of_step(step, loop, before)
            times.append(of_step)
        return times

    def _of_step(self, step: LoopStep, loop: Loop, before: _Before) -> tuple[StepTimes, _Before]:
        rows = self._launched_in(step.begin_s, step.next_begin_s)
        kinds = self._work.kind[rows]
        own = rows[kinds != WorkKind.TO_DEVICE]
        waits = self._waits(step, own)
        received_s = _received(step, waits, loop)
        requested_s = received_s - waits.leading_s
        gap_since_s = _gap_since(step, requested_s, before)
        if step.after_evaluation or math.isnan(before.end_s):
            gap_since_s = max(gap_since_s, self._free_s(step.begin_s))
        later_s = sum(fetch.end_s - fetch.start_s for fetch in waits.later)
        exposed_s = sum(self._idle_s(fetch) for fetch in waits.later)
        if not len(own):
            nothing = StepTimes(
                t_start=step.begin_s if math.isnan(requested_s) else requested_s,
                t_got=received_s,
                copy_start=NAN,
                copy_end=NAN,
                compute_start=NAN,
                compute_end=NAN,
                t_launched=NAN,
                previous_end=gap_since_s,
                outside_s=NAN,
                launch_idle_s=NAN,
                other_wait_s=later_s,
                other_exposed_s=exposed_s,
            )
            return nothing, _Before()
        first = self._first_kernel(own, received_s)
        start_s = max(float(self._work.start_s[first]), gap_since_s)
        copy_start_s, copy_end_s = self._copy(rows, first, gap_since_s, start_s)
        end_s, launched_s, left_s = self._end(step, own, start_s)
        times = StepTimes(
            t_start=step.begin_s if math.isnan(requested_s) else requested_s,
            t_got=received_s,
            copy_start=received_s if math.isnan(copy_start_s) else copy_start_s,
            copy_end=received_s if math.isnan(copy_end_s) else copy_end_s,
            compute_start=start_s,
            compute_end=end_s,
            t_launched=launched_s,
            previous_end=gap_since_s,
            outside_s=_outside(step, requested_s, before),
            launch_idle_s=self._launch_idle_s(start_s, end_s, exposed_s),
            other_wait_s=later_s,
            other_exposed_s=min(exposed_s, end_s - start_s),
        )
        return times, _Before(end_s, left_s)

    def _launched_in(self, since_s: float, until_s: float) -> Ints:
        """Returns the pieces of work that were launched in a time, in that order."""
        first, end = np.searchsorted(self._launched_s, [since_s, until_s])
        return np.asarray(self._order[first:end])

    def _free_s(self, at_s: float) -> float:
        """Returns when all was done that was launched before a moment; -infinity where nothing was."""
        n_before = int(np.searchsorted(self._launched_s, at_s))
        return float(self._reached_s[n_before - 1]) if n_before else -math.inf

    def _waits(self, step: LoopStep, own: Ints) -> _Waits:
        """Returns the requests of a step: those before any of its work was launched, and the others."""
        if not len(own):
            return _Waits(step.fetches, ())
        # Some loaders prepare a batch on the device before they hand it over.
        first_s = float(self._work.launched_s[own[0]])
        n_leading = max(1, sum(fetch.start_s < first_s for fetch in step.fetches))
        return _Waits(step.fetches[:n_leading], step.fetches[n_leading:])

    def _first_kernel(self, own: Ints, received_s: float) -> int:
        """Returns the first kernel that was launched once the batch had come; of all where none was, and
        any work where there is none. Memory is filled with zeros before the copy of a batch, too."""
        kernels = own[self._work.kind[own] == WorkKind.KERNEL]
        if not len(kernels):
            return int(own[0])
        of_batch = kernels[self._work.launched_s[kernels] >= received_s - ROUNDING_S]
        return int(of_batch[0]) if len(of_batch) else int(kernels[0])

    def _copy(
        self, rows: Ints, first: int, gap_since_s: float, start_s: float
    ) -> tuple[float, float]:
        """Returns when the copy of a batch began and ended; NaN where none is seen."""
        copies = rows[self._work.kind[rows] == WorkKind.TO_DEVICE]
        copies = copies[self._work.launched_s[copies] <= self._work.launched_s[first]]
        if not len(copies):
            first_near, end_near = np.searchsorted(
                self._copy_starts_s, [gap_since_s - self._longest_copy_s, start_s]
            )
            near = self._copies[first_near:end_near]
            copies = near[self._work.end_s[near] > gap_since_s]
        if not len(copies):
            return NAN, NAN
        return float(self._work.start_s[copies].min()), float(self._work.end_s[copies].max())

    def _end(self, step: LoopStep, own: Ints, start_s: float) -> tuple[float, float, float]:
        """Returns when the work of a step ended, when it was launched, and since when the script did
        something else (NaN where the device still worked as the next batch was requested)."""
        ends_s = self._work.end_s[own]
        last_s = max(float(ends_s.max()), start_s)
        launch_ends_s = self._work.launch_end_s[own]
        lag_s = last_s - step.next_begin_s
        is_done = lag_s < max(LEAST_LAG_S, LAG_FRAC * (last_s - start_s))
        if not is_done:
            return last_s, step.next_begin_s, NAN
        launched_s = float(launch_ends_s.max())
        end_s = last_s
        # Without the launches it is not known what the update came after.
        if step.updated is not None and self._knows_launches:
            until_update = self._work.launched_s[own] <= step.updated.end_s
            if until_update.any():
                end_s = max(float(ends_s[until_update].max()), start_s)
                launched_s = step.updated.end_s
        return end_s, launched_s, max(end_s, launched_s)

    def _idle_s(self, fetch: HostSpan) -> float:
        """Returns for how long the device had nothing to do while a batch was waited for."""
        begin, end = nanoseconds(np.array([fetch.start_s, fetch.end_s]))
        busy = covered_before(self._busy, np.array([begin, end]))
        return max(0.0, float(end - begin - (busy[1] - busy[0])) / 1e9)

    def _launch_idle_s(self, start_s: float, end_s: float, waited_s: float) -> float:
        """Returns for how long the device waited for launches in a time, without that for batches, `waited_s`;
        NaN where that is not known."""
        if not self._knows_launches:
            return NAN
        first, end = np.searchsorted(self._bubbles_s, [start_s, end_s])
        return max(0.0, float(self._lost_s[first:end].sum()) - waited_s)


def _launch_bubbles(work: DeviceWork) -> tuple[Floats, Floats]:
    """Returns when the device began to wait for launches, sorted, and for how long each time.

    It did where nothing was left to do, and what came next was not launched yet.
    """
    if len(work) < 2:
        return np.zeros(0), np.zeros(0)
    reach_s = np.maximum.accumulate(work.end_s)[:-1]
    next_s = work.start_s[1:]
    was_late = (next_s > reach_s) & (work.launch_end_s[1:] > reach_s)
    return np.asarray(reach_s[was_late]), np.asarray((next_s - reach_s)[was_late])
