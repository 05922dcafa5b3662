"""What the analysis finds out about a run that has ended: computed once, shared by all sessions.

Runs that have ended never change, so a figure is cached by the run's number. For Compare only the
columns that a figure needs are read: all columns of twenty runs of 100,000 steps would take 400 MB.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import streamlit as st

from vitprof.analysis.arrays import Interval, Series
from vitprof.analysis.compare import comparison, differences, guard
from vitprof.analysis.timing import (
    activity,
    loading,
    periods,
    slow_samples,
    slow_workers,
    steady,
    summary,
    timeline,
    worker_use,
)
from vitprof.analysis.timing.gaps import Gaps, find_gaps, training_time
from vitprof.analysis.verdict import headroom
from vitprof.analysis.verdict.answer import Proof
from vitprof.experiments import answers, headroom_runs
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.recording.verdict import Verdict
from vitprof.store import StoredRun
from vitprof.store.tournaments import StoredTournament
from vitprof.ui.resources import STEP_NAMES, machine, series, store

SERIES_KEPT = 3
"""Runs of which all columns stay in memory: 100,000 steps take 21 MB."""
FIGURES_KEPT = 32
WORDS_KEPT = 256
"""Verdicts and headrooms that stay in memory: they are small, take seconds to compute, and Compare
needs many."""


@dataclass(frozen=True)
class Idle:
    """The device's time while it trained, and the step to look at first."""

    gaps: Gaps
    """One row, the sums over these steps."""
    n: int
    """Steps of the training time: steady ones, and epoch starts."""
    n_epoch_starts: int
    """Those of them that begin a later epoch."""
    intervals: dict[str, Interval]
    """Shares of the span with their intervals, see `idle_interval`."""
    worst: int
    """Position in the run's steps of the step after the largest gap."""


@st.cache_resource(show_spinner=False, max_entries=SERIES_KEPT)
def all_columns(run_id: int) -> Series:
    """Returns every column of the steps of a run that has ended.

    Those that charts draw are in memory already.
    """
    drawn = series(run_id)
    drawn.refresh(store().run(run_id).facts)
    steps = drawn.steps()
    # not beyond these rows: a watched script may just be going on
    last = int(steps["step"][-1]) if len(steps["step"]) else -1
    others = [name for name in STEP_COLUMNS if name not in STEP_NAMES]
    every = {**steps, **store().steps(run_id, until=last, names=others)}
    return {name: every[name] for name in STEP_COLUMNS}


@st.cache_resource(show_spinner=False, max_entries=FIGURES_KEPT)
def device_account(run_id: int) -> tuple[Idle | None, summary.RecordingCost]:
    """Returns where the device's time went (None without device times) and what recording cost.

    Both follow from the gaps of all steps, which are computed once.
    """
    kept = series(run_id)
    run = store().run(run_id)
    kept.refresh(run.facts)
    steps = kept.steps()
    phases = run.phases
    every = find_gaps(steps, phases)
    cost = summary.recording_cost(steps, phases, every)
    training = training_time(steps, phases, every)
    del every  # 130 MB of a million steps
    gaps = training.gaps
    if not gaps.span_ns:
        return None, cost
    worst = timeline.after_largest_gap(gaps)
    idle = Idle(gaps.summed(), len(gaps.index), training.n_starts, training.intervals(), worst)
    return idle, cost


def idle_of(run_id: int) -> Idle | None:
    return device_account(run_id)[0]


@st.cache_resource(show_spinner=False, max_entries=FIGURES_KEPT)
def loading_of(run_id: int) -> loading.Loading:
    return loading.loading_of(all_columns(run_id), store().run(run_id).config)


@st.cache_resource(show_spinner=False, max_entries=FIGURES_KEPT)
def slow_samples_of(run_id: int) -> slow_samples.SlowSamples | None:
    run = store().run(run_id)
    return slow_samples.slow_samples(run.facts, run.environment, all_columns(run_id))


@st.cache_resource(show_spinner=False, max_entries=FIGURES_KEPT)
def slow_worker_of(run_id: int) -> slow_workers.SlowWorker | None:
    run = store().run(run_id)
    steps = all_columns(run_id)
    facts = {**run.facts, **run.environment}
    return slow_workers.slow_worker(steps, steady.steady_state(steps), facts)


@st.cache_resource(show_spinner=False, max_entries=FIGURES_KEPT)
def slow_batches_of(run_id: int) -> periods.SlowBatches | None:
    steps = all_columns(run_id)
    return periods.slow_batches(steps, steady.steady_state(steps))


@st.cache_resource(show_spinner=False, max_entries=SERIES_KEPT)
def worker_telemetry(run_id: int) -> Series:
    """Returns what was sampled of the workers of a run that has ended."""
    return store().telemetry(run_id, names=worker_use.COLUMNS)


def headroom_of(run: StoredRun) -> headroom.Headroom | None:
    group = headroom_runs.group_of(run)
    runs = store().runs(group_key=group)
    ended = tuple(r.id for r in runs if not r.live)
    pending = tuple(r.id for r in runs if r.live)
    return _headroom(run.id, ended, pending) if ended else None


@st.cache_resource(show_spinner=False, max_entries=WORDS_KEPT)
def _headroom(
    run_id: int, ended: tuple[int, ...], pending: tuple[int, ...]
) -> headroom.Headroom | None:
    """Returns the headroom.

    `ended` and `pending`, ids of its runs, are part of the cache's key, because the headroom
    changes as more of them are started or end.
    """
    return headroom_runs.find_headroom(store(), store().run(run_id))


def verdict_of(run: StoredRun) -> Verdict:
    """Returns the verdict stored with a run, or a new one where headroom came since."""
    measured = headroom_of(run)
    stored = answers.stored_verdict(run, measured)
    return stored if stored is not None else _judge(run.id, hash(measured), measured)


@st.cache_resource(show_spinner=False, max_entries=WORDS_KEPT)
def _judge(run_id: int, key: int, _measured: headroom.Headroom | None) -> Verdict:
    run = store().run(run_id)
    return answers.judge_again(store(), run, all_columns(run_id), _measured, machine())


def proofs_of(
    run: StoredRun,
    found: Verdict,
    view: answers.View,
    looked_at: Sequence[StoredTournament],
) -> tuple[Proof, ...]:
    """Returns what the tournaments `looked_at` have shown of fixes for a run with the verdict `found`.

    Not cached: a tournament may go on. `view` keeps what it has read of each.
    """
    return answers.proofs_of(store(), run, found, view, looked_at)


COMPARED_KEPT = 200
"""Runs whose figures stay in memory, 10 to 20 kB each."""
POINTS = 4_000
"""Groups of steps in an overlay of all runs together: about 64 kB, however many runs and however
long."""
MAX_GROUPS = 900
"""The most groups for each of its runs."""
MIN_GROUPS = 60
"""The fewest groups for each of its runs."""
Halves = np.typing.NDArray[np.float32]


@dataclass(frozen=True)
class DeviceTime:
    """Where a run's device time went."""

    mean: comparison.StepTime | None
    """The mean step, epoch starts included; None where no steady step has device times."""
    strip: activity.Strip
    """The whole run."""


@dataclass(frozen=True)
class Line:
    """One figure of every step, thinned to the lowest and highest of each group.

    float32: a chart needs no more.
    """

    step: Halves
    t_s: Halves
    """Seconds since the first request for a batch."""
    value: Halves
    group: int
    """Steps in a group; 1 where none was left out."""
    warmup: int
    """Number of warm-up steps that are left out."""


@st.cache_resource(show_spinner=False, max_entries=COMPARED_KEPT)
def device_time_of(run_id: int) -> DeviceTime:
    run = store().run(run_id)
    steps = store().steps(run_id)
    kept = steady.training(steps)
    samples = float(steps["samples"][kept].mean()) if kept.any() else float("nan")
    gaps = training_time(steps, run.phases).gaps
    return DeviceTime(comparison.step_time(gaps, samples), activity.whole_run(steps))


@st.cache_resource(show_spinner=False, max_entries=COMPARED_KEPT)
def mean_step_of(run_id: int) -> comparison.StepTime | None:
    """Returns where a run's mean step goes, epoch starts included, with intervals; None where no
    steady step has device times.
    """
    run = store().run(run_id)
    steps = store().steps(run_id)
    kept = steady.training(steps)
    training = training_time(steps, run.phases)
    samples = float(steps["samples"][kept].mean()) if kept.any() else float("nan")
    mean = comparison.step_time(training.gaps, samples)
    if mean is None:
        return None
    return comparison.with_intervals(mean, training.gaps, training.starts)


@st.cache_resource(show_spinner=False, max_entries=COMPARED_KEPT)
def waits_of(run_id: int) -> comparison.Distribution:
    steps = store().steps(run_id, names=("epoch", "warmup", "data_wait_s"))
    return comparison.distribution(steps["data_wait_s"][steady.steady_state(steps)])


@st.cache_resource(show_spinner=False, max_entries=COMPARED_KEPT)
def line_of(run_id: int, column: str, groups: int, warmup: bool) -> Line:
    """Returns `column` of the run's steps in at most `groups` groups.

    Warm-up steps are left out unless `warmup` asks for them or there are no others.
    """
    steps = store().steps(run_id, names=("step", "warmup", "t_start_s", column))
    keep = steps["warmup"] == 0
    if warmup or not keep.any():
        keep = np.ones(len(keep), dtype=bool)
    value = steps[column][keep]
    since_begin_s = steps["t_start_s"][keep] - steps["t_start_s"][:1]
    size = timeline.group_size(len(value), groups)
    at = timeline.min_max(value, 0, len(value), size)
    return Line(
        step=steps["step"][keep][at].astype(np.float32),
        t_s=since_begin_s[at].astype(np.float32),
        value=value[at].astype(np.float32),
        group=size,
        warmup=int((~keep).sum()),
    )


def groups_each(n_runs: int) -> int:
    """Returns the groups of steps for each run: fewer with more runs, so that the chart does not
    grow.
    """
    return max(MIN_GROUPS, min(MAX_GROUPS, POINTS // max(n_runs, 1)))


@st.cache_resource(show_spinner=False, max_entries=COMPARED_KEPT)
def facts_of(run_id: int) -> differences.RunFacts:
    """Returns what the guard compares of a run (`vitprof.analysis.compare.guard`)."""
    run = store().run(run_id)
    steps = store().steps(run_id, names=guard.GUARDED_STEPS)
    telemetry = store().telemetry(run_id, names=("t_s", *guard.GUARDED_TELEMETRY))
    facts = guard.run_facts(
        run.id, run.config, run.environment, run.facts, run.summary, steps, telemetry
    )
    # copies: a slice would keep the whole column in memory
    return replace(facts, loss_step=facts.loss_step.copy(), loss=facts.loss.copy())
