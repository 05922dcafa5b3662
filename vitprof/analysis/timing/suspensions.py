"""Times in which a job could not run: the steps they fell into, and what to say of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series
from vitprof.analysis.timing.steady import begin_s, end_s, got_s
from vitprof.formats import seconds
from vitprof.recording.columns import Stop

STOPS = "stops"
"""Fact of a run with stops: a list of `vitprof.recording.columns.Stop` as plain values."""
STOP_COLUMNS = (
    *("step", "rank", "t_start_s", "data_wait_s", "decode_wait_s", "compute_start_s", "compute_s", "gap_s"),
    *("device_prepare_s", "warmup"),
)
"""Step columns that `in_stops` needs, and those that tell a step from others."""
MIN_WAIT_S = 0.5
"""Seconds that the loop must have waited for a stopped worker: less shows in no figure of a run."""
SLACK_S = 0.05
"""Seconds by which a mark of the job may be inside a "paused" gap: job and recorder wake up at the same moment, and a
busy machine takes some 10 ms for each."""
WORDS: dict[str, str] = {
    "stopped": "the job was stopped (by a signal or a debugger)",
    "worker": "a worker of the job was stopped (by a signal or a debugger)",
    "paused": "neither the job nor the program that records it ran (both stopped, or the machine paused)",
    "asleep": "the machine slept",
}
"""`Stop.kind` -> what happened, in words."""


def stops_of(facts: Mapping[str, Any]) -> tuple[Stop, ...]:
    """Returns the stops among the facts of a run; empty if they were not looked for."""
    return tuple(Stop(**stop) for stop in facts.get(STOPS) or ())


def plain_stops(stops: Sequence[Stop]) -> list[dict[str, Any]]:
    """Returns stops as plain values for the facts of a run."""
    return [dataclasses.asdict(stop) for stop in stops]


def in_stops(steps: Series, stops: Sequence[Stop]) -> Mask:
    """Returns which steps a stop fell into, (n,) bool. `steps` needs `STOP_COLUMNS`.

    A stopped worker only hits the step that waited for it until it continued. If the job did something during a
    "paused" gap, the job was not stopped and the gap hits no step.
    """
    found = np.zeros(len(steps["t_start_s"]), dtype=bool)
    for stop in stops:
        found |= _hit(steps, stop)
    return found


def stopped_s(steps: Series, stops: Sequence[Stop]) -> Floats:
    """Returns how much of each step's time was a stop, (n,) seconds, for the steps that `in_stops` finds."""
    begin, end = _spans(steps)
    found = np.zeros(len(begin))
    for stop in stops:
        if stop.kind != "asleep":  # no clock counted it
            longest = np.where(_hit(steps, stop), np.nan_to_num(end - begin), 0.0)
            found += np.minimum(longest, stop.seconds)
    return found


def stop_sentence(stop: Stop, n_steps: int) -> str:
    """Returns what to know of a stop that fell into `n_steps` steps."""
    what = f"{seconds(stop.seconds)} in which {WORDS[stop.kind]}"
    if not n_steps:
        return f"{what} fell into no step"
    steps = f"{n_steps} step{'s' if n_steps > 1 else ''}"
    return f"{what} are left out: the figures of the steady state are those of the other steps (left out: {steps})"


def _hit(steps: Series, stop: Stop) -> Mask:
    begin, end = _spans(steps)
    over = np.asarray((begin < stop.t_end_s) & (end > stop.t_start_s))
    if stop.kind == "worker":
        asked, got = steps["t_start_s"], got_s(steps)
        waited = np.minimum(got, stop.t_end_s) - np.maximum(asked, stop.t_start_s)
        return np.asarray((got >= stop.t_end_s) & (waited >= MIN_WAIT_S))
    if stop.kind == "paused":
        marks = np.concatenate([steps["t_start_s"], got_s(steps), end])
        if ((marks > stop.t_start_s + SLACK_S) & (marks < stop.t_end_s - SLACK_S)).any():
            return np.zeros_like(over)
    return over


def _spans(steps: Series) -> tuple[Floats, Floats]:
    """Returns when each step began and ended, on the host or the device, whichever was first and last; (n,) seconds
    each.
    """
    return np.fmin(steps["t_start_s"], begin_s(steps)), np.fmax(got_s(steps), end_s(steps))
