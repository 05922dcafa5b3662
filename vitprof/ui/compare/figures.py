"""The data of the Compare page's charts: small figures of each run, computed once for all sessions.

Runs that have ended never change, so a figure is cached by the run's number. Only the columns that a figure needs are
read: all columns of twenty runs of 100,000 steps would take 400 MB.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from vitprof.analysis.arrays import Floats
from vitprof.analysis.compare.comparison import Distribution, StepTime, distribution, step_time
from vitprof.analysis.compare.differences import RunFacts
from vitprof.analysis.compare.guard import GUARDED_STEPS, GUARDED_TELEMETRY, run_facts
from vitprof.analysis.timing.downsample import group_size, min_max
from vitprof.analysis.timing.gaps import find_gaps
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.utilisation import idle_bins
from vitprof.ui.resources import store

KEPT = 200
"""Runs whose figures stay in memory, 10 to 20 kB each."""
STRIP_BINS = 300
POINTS = 4_000
"""Groups of steps in an overlay of all runs together: about 64 kB, however many runs and however long."""
MAX_GROUPS, MIN_GROUPS = 900, 60
"""Bounds of the groups for each of its runs."""
Halves = NDArray[np.float32]


@dataclass(frozen=True)
class DeviceTime:
    """Where a run's device time went."""

    mean: StepTime | None
    """The mean step over the steady state; None where no steady step has device times."""
    edges_s: Floats
    """(bins + 1,) seconds since the first request for a batch."""
    idle: Floats
    """(bins,) idle share, see `analysis.timing.utilisation.idle_bins`."""


@dataclass(frozen=True)
class Line:
    """One figure of every step, thinned to the lowest and highest of each group. float32: a chart needs no more."""

    step: Halves
    t_s: Halves
    """Seconds since the first request for a batch."""
    value: Halves
    group: int
    """Steps in a group; 1 where none was left out."""
    warmup: int
    """Number of warm-up steps that are left out."""


@st.cache_resource(show_spinner=False, max_entries=KEPT)
def device_time_of(run_id: int) -> DeviceTime:
    """Returns where the device time of a run went."""
    run, steps = store().run(run_id), store().steps(run_id)
    steady = steady_state(steps)
    samples = float(steps["samples"][steady].mean()) if steady.any() else float("nan")
    edges, idle = idle_bins(steps, run.phases, bins=STRIP_BINS)
    begin = float(steps["t_start_s"][0]) if len(steps["step"]) else 0.0
    gaps = find_gaps(steps, run.phases, keep=steady)
    return DeviceTime(step_time(gaps, samples), edges - begin, idle)


@st.cache_resource(show_spinner=False, max_entries=KEPT)
def waits_of(run_id: int) -> Distribution:
    """Returns the data waits of the steady steps, in seconds."""
    steps = store().steps(run_id, names=("epoch", "warmup", "data_wait_s"))
    return distribution(steps["data_wait_s"][steady_state(steps)])


@st.cache_resource(show_spinner=False, max_entries=KEPT)
def line_of(run_id: int, column: str, groups: int, warmup: bool) -> Line:
    """Returns `column` of the run's steps in at most `groups` groups. Warm-up steps are left out unless `warmup` asks
    for them or there are no others.
    """
    steps = store().steps(run_id, names=("step", "warmup", "t_start_s", column))
    begin = steps["t_start_s"][:1]
    keep = np.ones(len(begin) and len(steps["step"]), dtype=bool) if warmup else steps["warmup"] == 0
    keep = keep if keep.any() else np.ones(len(keep), dtype=bool)
    number, start, value = (steps[name][keep] for name in ("step", "t_start_s", column))
    k = group_size(len(value), groups)
    at = min_max(value, 0, len(value), k)
    t = start[at] - begin if len(begin) else start[at]
    return Line(
        number[at].astype(np.float32), t.astype(np.float32), value[at].astype(np.float32), k, int((~keep).sum())
    )


def groups_each(n_runs: int) -> int:
    """Returns the groups of steps for each run: fewer with more runs, so that the chart does not grow."""
    return max(MIN_GROUPS, min(MAX_GROUPS, POINTS // max(n_runs, 1)))


@st.cache_resource(show_spinner=False, max_entries=KEPT)
def facts_of(run_id: int) -> RunFacts:
    """Returns what the guard compares of a run (`vitprof.analysis.compare.guard`)."""
    run = store().run(run_id)
    steps = store().steps(run_id, names=GUARDED_STEPS)
    telemetry = store().telemetry(run_id, names=("t_s", *GUARDED_TELEMETRY))
    facts = run_facts(run.id, run.name, run.config, run.environment, run.facts, run.summary, steps, telemetry)
    # copies: a slice would keep the whole column in memory
    return dataclasses.replace(facts, loss_step=facts.loss_step.copy(), loss=facts.loss.copy())
