"""The figures of a recording, from the steps of a training on a device that works at once: the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from vitprof.measure.step_columns import Columns, Figures, derive
from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Fetch, Stages
from vitprof.watch.events import NAN

WARMUP_STEPS = 5
STAGES = ("read_s", "transform_s", "collate_s", "start_s", "end_s", "worker")
NOTED = (
    *("step", "epoch", "warmup", "t_start", "t_got", "copy_start", "copy_end", "compute_start"),
    *("compute_end", "t_launched", "samples", "loss", "queue_depth", "outside_s", *STAGES),
)
"""What is noted of a step, by the names of `StepMarks` and `BatchTimes`."""


def columns_of(steps: Sequence[Step]) -> Columns:
    """Returns the columns of step records, (n,) each: see `recording.columns.StepRecord`."""
    begins = _begins(steps)
    rows = [_marks(number, step, begins[number]) for number, step in enumerate(steps)]
    marks = {name: np.array([row.get(name, NAN) for row in rows]) for name in NOTED}
    marks["previous_end"] = _previous_ends(steps, begins)
    return derive(marks)


def _begins(steps: Sequence[Step]) -> list[float]:
    """Returns when each step began: with its first request, or as the one before ended."""
    found = list[float]()
    for step in steps:
        if step.fetches:
            found.append(step.fetches[0].since_s)
        else:
            found.append(steps[len(found) - 1].end_s if found else step.work[0].at_s)
    return found


def _previous_ends(steps: Sequence[Step], begins: Sequence[float]) -> Figures:
    """Returns where the gap before each step counts from: where the one before ended; where the step
    itself began, if an evaluation was between them."""
    found = [NAN]
    for number, (before, step) in enumerate(itertools.pairwise(steps), 1):
        found.append(begins[number] if step.after_evaluation else before.end_s)
    return np.array(found[: len(steps)])


def _marks(number: int, step: Step, since_s: float) -> dict[str, float]:
    stages = _together([fetch.stages for fetch in step.fetches])
    # As if it had waited for all of them at once, before its work.
    received_s = since_s + step.wait_s if step.wait_is_known else NAN
    return {
        "step": float(number),
        "epoch": float(step.epoch),
        "warmup": float(number < WARMUP_STEPS),
        "t_start": since_s,
        "t_got": received_s,
        "copy_start": received_s,
        "copy_end": received_s,
        "compute_start": received_s,
        "compute_end": step.end_s,
        "t_launched": step.end_s,
        "samples": step.samples,
        "loss": step.loss,
        "queue_depth": _first_ready(step.fetches),
        "outside_s": NAN,
        **stages,
    }


def _first_ready(fetches: Sequence[Fetch]) -> float:
    return fetches[0].n_ready if fetches else NAN


def _together(made: Sequence[Stages | None]) -> dict[str, float]:
    """Returns the seconds of all batches in each stage, from the beginning of the first to the end of
    the last."""
    known = [stages for stages in made if stages is not None]
    if not known:
        return {}
    transform_s = sum(stages.transform_s for stages in known)
    dataset_s = sum(stages.dataset_s for stages in known)
    return {
        "read_s": max(0.0, dataset_s - transform_s),
        "transform_s": transform_s,
        "collate_s": sum(stages.collate_s for stages in known),
        "start_s": known[0].start_s,
        "end_s": known[-1].end_s,
        "worker": known[-1].worker,
    }
