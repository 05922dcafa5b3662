"""What a verdict may not be sure of: waits that are not the training's, epoch starts, one step that decides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitprof.analysis.bootstrap import Interval, ratio_interval
from vitprof.analysis.thresholds import INPUT_BOUND_FRAC, MODERATE_FRAC, SEVERAL_LOADERS_FRAC
from vitprof.analysis.timing.exposure import Exposure
from vitprof.analysis.timing.gaps import Gaps
from vitprof.formats import percent, seconds
from vitprof.recording.verdict import SingleEvent

FETCHED_IN_A_THREAD, SEVERAL_LOADERS_STEPS = "fetched_in_a_thread", "several_loaders_steps"
"""Facts of a watched run: whether batches were requested in another thread than the one that trains, and the number of
steps that asked more than one loader for a batch (`vitprof.watch`)."""


def not_measurable(facts: Mapping[str, Any], n_steps: int) -> str:
    """Returns why the waits of the loop that trains are not known for a run of `n_steps`; "" if they are."""
    if facts.get(FETCHED_IN_A_THREAD):
        return (
            "the script fetches batches in another thread than the one that trains, so the waits measured are not the "
            "training's; watch what the training loop iterates over: for batch in vitprof.watch(batches)"
        )
    several = int(facts.get(SEVERAL_LOADERS_STEPS) or 0)
    if several > SEVERAL_LOADERS_FRAC * n_steps:
        return (
            f"{several:,} of {n_steps:,} steps asked more than one loader for a batch, and only the waits for one of "
            "them are measured; watch what gives all batches of a step: "
            "for batches in vitprof.watch(zip(loader, other))"
        )
    return ""


def epoch_starts_count(exposure: Exposure, idle_words: str) -> str:
    """Returns that the waits with which epochs begin change the answer; `idle_words` as in `wording.Device`."""
    return (
        f"each epoch begins with a wait of {seconds(exposure.starts.wait_s)}, {percent(exposure.starts.frac)} of the "
        f"wall clock of training: {idle_words} {percent(exposure.with_epoch_starts.idle.value)} of the time with "
        f"these waits, and {percent(exposure.idle.value)} in the steps between them"
    )


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
