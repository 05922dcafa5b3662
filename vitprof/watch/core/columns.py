"""The figures of a recording, from the steps of a training: on a device that works at once (the CPU), or
with what an asynchronous one did of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from vitprof.measure.step_columns import Columns, Figures, derive
from vitprof.watch.core.compute_parts import part_columns
from vitprof.watch.core.device_columns import DeviceFigures, with_device
from vitprof.watch.core.loop import Step
from vitprof.watch.core.rank_own_times import RankStepFigures, with_ranks
from vitprof.watch.core.timeline import Stages
from vitprof.watch.events import NAN

WARMUP_STEPS = 5
NOT_KNOWN = Stages(NAN, NAN, NAN, NAN, NAN, NAN)


def columns_of(
    steps: Sequence[Step],
    before: Step | None = None,
    first: int = 0,
    *,
    optimizers_step: bool = True,
    device: Sequence[DeviceFigures | None] | None = None,
    ranks: Sequence[RankStepFigures | None] | None = None,
) -> Columns:
    """Returns the columns of step records, (n,) each: see `recording.columns.StepRecord`.

    `before`: the step before these; `first`: the number of the first one. `optimizers_step`: whether
    optimizers of PyTorch's update; else when that is done was not seen. `device`: what an asynchronous
    device did of each step (`device_columns.DeviceSteps`). `ranks`: what is this rank's own of each
    (`rank_own_times.RankSteps`).
    """
    marks = marks_of(steps, before, first)
    if device is not None:
        marks = with_device(marks, device)
    if ranks is not None:
        marks = with_ranks(marks, ranks)
    columns = derive(marks)
    of_host = part_columns(steps, optimizers_step=optimizers_step)
    if device is None:
        return {**columns, **of_host}
    unknown = np.isnan(columns["compute_start_s"])
    # `derive` would take the whole wait for an exposed one.
    columns["exposed_wait_s"] = np.where(unknown, np.nan, columns["exposed_wait_s"])
    is_on_device = np.array([each is not None for each in device], dtype=bool)
    for name, column in of_host.items():
        columns[name] = np.where(is_on_device, columns[name], column)
    return columns


def marks_of(steps: Sequence[Step], before: Step | None = None, first: int = 0) -> Columns:
    """Returns the marks of steps, for `derive`, as of a device that works at once."""
    numbers = np.arange(first, first + len(steps), dtype=float)
    requested_s = _begins(steps, before)
    # As if it had waited for all of them at once, before its work.
    waits_s = np.array([step.wait_s if step.wait_is_known else NAN for step in steps])
    ends = np.array([step.end_s for step in steps])
    # A step that the script marks may end after the iterator of the next one was begun.
    begins = np.fmax(requested_s, _ends_before(ends, before))
    received_s = np.maximum(requested_s + waits_s, begins)
    return {
        "step": numbers,
        "epoch": np.array([float(step.epoch) for step in steps]),
        "warmup": (numbers < WARMUP_STEPS).astype(float),
        "t_start": begins,
        "t_got": received_s,
        "copy_start": received_s,
        "copy_end": received_s,
        "compute_start": _work_begins(steps, received_s),
        "compute_end": ends,
        "t_launched": ends,
        "samples": np.array([step.samples for step in steps]),
        "loss": np.array([step.loss for step in steps]),
        "queue_depth": np.array([_n_ready(step) for step in steps]),
        "outside_s": _outside(steps, begins, before),
        "previous_end": _previous_ends(steps, begins, before),
        **_stages(steps, begins, received_s),
    }


def _begins(steps: Sequence[Step], before: Step | None) -> Figures:
    """Returns when each step began: with its first request, or as the one before ended."""
    begins = list[float]()
    for step in steps:
        if step.fetches:
            begins.append(step.begin_s)
        else:
            begins.append(step.work[0].at_s if before is None else before.end_s)
        before = step
    return np.array(begins)


def _ends_before(ends: Figures, before: Step | None) -> Figures:
    """Returns when the step before each one ended; NaN where there was none."""
    first_s = NAN if before is None else before.end_s
    return np.concatenate([[first_s], ends[:-1]])


def _previous_ends(steps: Sequence[Step], begins: Figures, before: Step | None) -> Figures:
    """Returns where the gap before each step counts from: where the one before ended; where the step
    itself began, if it is the first of all, or an evaluation or vitprof itself was between them."""
    ends = np.array([step.end_s for step in steps])
    begins_anew = [step.after_evaluation or _is_held_up(step) for step in steps]
    previous_ends = np.where(begins_anew, begins, _ends_before(ends, before))
    if before is None:
        previous_ends[:1] = begins[:1]
    return previous_ends


def _is_held_up(step: Step) -> bool:
    return bool(step.fetches) and step.fetches[0].held_up_s > 0


def _work_begins(steps: Sequence[Step], received_s: Figures) -> Figures:
    """Returns when the work of each step begins: with its batch, or as the script enters a step that it
    marks."""
    entered_s = [step.entered_s if step.is_marked else -math.inf for step in steps]
    return np.maximum(received_s, entered_s)


def _outside(steps: Sequence[Step], begins: Figures, before: Step | None) -> Figures:
    """Returns how long the script did something else before each step that it marks; NaN for others."""
    outside_s = list[float]()
    for step, begun_s in zip(steps, begins.tolist(), strict=True):
        if not step.is_marked:
            outside_s.append(NAN)
        else:
            follows = before is not None and before.is_marked and not step.after_evaluation
            left_s = before.end_s if before is not None and follows else begun_s
            enters_s = max(step.entered_s, begun_s + step.wait_s)
            outside_s.append(max(0.0, enters_s - left_s - step.wait_s))
        before = step
    return np.array(outside_s)


def _n_ready(step: Step) -> float:
    return step.fetches[0].n_ready if step.fetches else NAN


def _stages(steps: Sequence[Step], begins: Figures, received_s: Figures) -> dict[str, Figures]:
    """Returns the columns of how the batches of each step were made, which it waited for in this time."""
    rows = [_sum_of_stages(step) for step in steps]
    figures = np.fromiter(itertools.chain.from_iterable(rows), float, len(rows) * len(NOT_KNOWN))
    columns = figures.reshape(len(rows), len(NOT_KNOWN)).T
    made = dict(zip(Stages._fields, columns, strict=True))
    dataset_s = made.pop("dataset_s")
    # An iterator that was begun before the step's own time, as before more updates, began in another one, too.
    wait_s = received_s - begins
    sampler_s = np.fmin(np.array([_sum_of(step, "indices_s") for step in steps]), wait_s)
    iterator_s = np.array([_sum_of(step, "iterator_s") for step in steps])
    return {
        "read_s": np.maximum(0.0, dataset_s - made["transform_s"]),
        **made,
        "sampler_s": sampler_s,
        "iterator_s": np.minimum(iterator_s, wait_s - np.nan_to_num(sampler_s)),
        "after_made_s": _after_made(steps, begins, received_s),
    }


def _sum_of(step: Step, name: str) -> float:
    """Returns the seconds of all waits of a step for this; NaN where no loader tells its stages."""
    if all(fetch.stages is None for fetch in step.fetches):
        return NAN
    return float(sum(getattr(fetch, name) for fetch in step.fetches))


def _after_made(steps: Sequence[Step], begins: Figures, received_s: Figures) -> Figures:
    """Returns how much of the time after each step's batch was made is no part of handing it over. Of several batches
    the hand-over is the sum of theirs: one that is made in the loop, where another waits already, is not handed
    over meanwhile."""
    seconds = list[float]()
    for step, begun_s, until_s in zip(steps, begins.tolist(), received_s.tolist(), strict=True):
        made = [fetch for fetch in step.fetches if fetch.stages is not None]
        if len(made) < 2:
            seconds.append(_sum_of(step, "after_made_s"))
            continue
        stages = made[-1].stages
        end_s = begun_s if stages is None else max(stages.end_s, begun_s)
        hand_over_s = min(until_s - begun_s, sum(fetch.hand_over_s for fetch in made))
        seconds.append(until_s - end_s - hand_over_s)
    return np.array(seconds)


def _sum_of_stages(step: Step) -> Stages:
    """Returns the seconds of all batches of a step in each stage, as if the last one was made right after
    the others: what was between them is no part of making any."""
    known = [stages for fetch in step.fetches if (stages := fetch.stages) is not None]
    if len(known) < 2:
        return known[0] if known else NOT_KNOWN
    return Stages(
        dataset_s=sum(stages.dataset_s for stages in known),
        transform_s=sum(stages.transform_s for stages in known),
        collate_s=sum(stages.collate_s for stages in known),
        start_s=known[-1].end_s - sum(stages.end_s - stages.start_s for stages in known),
        end_s=known[-1].end_s,
        worker=known[-1].worker,
    )
