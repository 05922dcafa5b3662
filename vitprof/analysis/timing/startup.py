"""The phases of a job's start, with their seconds: from the run's own marks, so nothing extra is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitprof.recording.columns import Phase

PROCESS, PREPARING, COPYING, MODEL, FIRST_BATCH = "process", "preparing", "copying", "model", "first batch"
WORDS: dict[str, str] = {
    PROCESS: "Start the process and load PyTorch",
    PREPARING: "Prepare the data",
    COPYING: "Copy the data",
    MODEL: "Open the data, build the model",
    FIRST_BATCH: "First batch",
}
"""Phases in their order -> their names on a page."""


@dataclass(frozen=True)
class StartPhase:
    """A phase of a job's start."""

    name: str
    """A key of `WORDS`."""
    seconds: float
    """How long it took, or has taken so far; NaN if it is still to come."""
    running: bool
    """Whether it is the phase that the job is in."""


def start_phases(
    t_origin_s: float | None, phases: Sequence[Phase], training_since_s: float | None, now_s: float, *, copies: bool
) -> list[StartPhase]:
    """Returns the phases of a job's start until its first batch, with their times up to `now_s`.

    All times are on the monotonic clock. `t_origin_s` is when the run began, `phases` are those that have ended so far,
    `training_since_s` is when training began, and `copies` says whether the data are first copied to another place. Do
    not call it for a run that has made a step: its start is over.
    """
    started = [p for p in phases if p.name == "startup"]
    ends = {
        PROCESS: started[0].t_end_s if started else math.nan,
        PREPARING: _end(phases, "prepare"),
        COPYING: _end(phases, "stage"),
        MODEL: math.nan if training_since_s is None else training_since_s,
        FIRST_BATCH: math.nan,
    }
    names = [name for name in WORDS if copies or name != COPYING]
    found: list[StartPhase] = []
    begin = now_s if t_origin_s is None else t_origin_s
    for at, name in enumerate(names):
        later = [ends[n] for n in names[at + 1 :] if math.isfinite(ends[n])]
        end = ends[name] if math.isfinite(ends[name]) else min(later, default=math.nan)
        if math.isfinite(end):
            found.append(StartPhase(name, max(end - begin, 0.0), running=False))
            begin = max(begin, end)
        else:
            found.append(StartPhase(name, max(now_s - begin, 0.0), running=True))
            found += [StartPhase(n, math.nan, running=False) for n in names[at + 1 :]]
            break
    return found


def _end(phases: Sequence[Phase], name: str) -> float:
    return next((p.t_end_s for p in phases if p.name == name), math.nan)
