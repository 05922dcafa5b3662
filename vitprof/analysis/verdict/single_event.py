"""Finds the one step that a verdict depends on: the idle share is computed with and without it."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.bootstrap import Interval, ratio_interval
from vitprof.analysis.thresholds import INPUT_BOUND_FRAC, MODERATE_FRAC
from vitprof.analysis.timing.gaps import Gaps
from vitprof.formats import percent, seconds
from vitprof.recording.verdict import SingleEvent

MIN_FRAC = 1 / 3
"""Share of the idle time that one step must have to be reported. Close to a threshold, leaving out any step can move a
run across it: that is what the interval is for."""


def find_single_event(gaps: Gaps, idle: Interval) -> SingleEvent | None:
    """Returns the step that decides the class of a run; None if the class is the same without it.

    `gaps` are those of the steady steps, `idle` is the idle share over all of them. A mean is at the mercy of one
    outlier (Huber and Ronchetti, Robust Statistics, 2009, section 1.1). So the share and its lower end are computed
    again without the step with the longest wait; None also if that step has under a third of the idle time.
    """
    waits = (gaps.exposed_wait_ns + gaps.exposed_h2d_ns) / 1e9
    if not waits.sum() > 0:
        return None
    worst = int(waits.argmax())
    rest = np.ones(len(waits), dtype=bool)
    rest[worst] = False
    whole = (gaps.causes_ns.sum(axis=1) + gaps.compute_ns) / 1e9 - gaps.by_step("evaluation")
    without = ratio_interval(waits[rest], whole[rest])
    if waits[worst] < MIN_FRAC * waits.sum() or _classes(idle) == _classes(without):
        return None
    return SingleEvent(int(gaps.step[worst]), float(waits[worst]), without.value)


def event_words(event: SingleEvent | None) -> str:
    """Returns the parenthesis that follows the share of time; "" if no single step decides."""
    if event is None:
        return ""
    wait = f"one wait of {seconds(event.idle_s)}, in step {event.step}, decides that"
    return f" ({wait}: {percent(event.idle_frac_without)} without it)"


def _classes(idle: Interval) -> tuple[int, int]:
    """Returns the class of the share and that of its lower end, which decides the verdict."""
    edges = (MODERATE_FRAC, INPUT_BOUND_FRAC)
    return int(np.searchsorted(edges, idle.value, side="right")), int(np.searchsorted(edges, idle.low, side="right"))
