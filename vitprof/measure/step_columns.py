"""The columns of step records, from the marks of many steps at once: the one place with their
formulas.

Built-in and watched loops note marks only, each by its name; the thread that sends calls `derive`.
All times are on the host's monotonic clock: marks of an asynchronous device are resolved before
(`recorder.StepRecorder`). Receivers import this, too: it needs no PyTorch.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitprof.recording.columns import STEP_COLUMNS


class BatchTimes(NamedTuple):
    """Times of making one batch, in any thread or process: durations, and moments on the host's
    monotonic clock.
    """

    read_s: float
    """Seconds spent reading bytes from storage, summed over the samples.

    This and the next three are NaN where a stage cannot be told apart."""
    decode_s: float
    """Seconds spent decoding and cropping."""
    transform_s: float
    """Seconds spent in transforms and augmentation."""
    collate_s: float
    """Seconds spent putting the samples into one batch."""
    start_s: float
    """When work on the batch began."""
    end_s: float
    """When the batch was complete."""
    worker: float = math.nan
    """Number of the worker process that made it; NaN where none did."""
    queue_depth: float = math.nan
    """Batches that were ready when the training loop asked for this one."""
    other_wait_s: float = 0.0
    """Seconds that the step waited for batches of other loaders, after it had this one."""
    other_exposed_s: float = 0.0
    """Those in which the device had nothing to do."""
    batch_values: float = math.nan
    """Numbers in its largest tensor: what a rank was given.

    This and the next four: where several ranks train."""
    between_s: float = math.nan
    """Seconds of the rank's own between the step before and this one, its wait for data aside."""
    collectives: float = math.nan
    """Collectives begun since the batch before."""
    awaited_s: float = math.nan
    """Seconds of waits for other ranks since then, where they are seen."""
    forward_s: float = math.nan
    """Seconds from the batch to the first backward pass on it, without waits for other ranks."""
    sampler_s: float = math.nan
    """Seconds of the step's wait in which a sampler gave indices.

    This and the next two: of a watched script."""
    iterator_s: float = math.nan
    """Those in which an iterator began, as its workers started, or ended."""
    after_made_s: float = math.nan
    """Those of both that came after the batch was made."""


UNKNOWN_TIMES = BatchTimes(*[math.nan] * 8)
"""The times of a loader that cannot tell."""


def n_ready(batches: Any) -> float:
    """Returns the number of batches that a DataLoader's workers have delivered and the loop has not
    taken yet.

    Those that wait to be pinned count. `batches` is the DataLoader's iterator; PyTorch has no
    public name for this number. NaN without workers, on a PyTorch version with other names, or on a
    system that cannot count what is in a queue (macOS).
    """
    tasks = getattr(batches, "_task_info", None)
    if tasks is None:
        # It has no workers.
        return math.nan
    try:
        # A task has its data as a second part where it was delivered out of order.
        came_early = sum(len(task) > 1 for task in tasks.values())
        # Without pinning the two are one queue.
        queues = {id(queue): queue for queue in (batches._data_queue, batches._worker_result_queue)}
        return float(came_early + sum(queue.qsize() for queue in queues.values()))
    except (AttributeError, NotImplementedError, OSError, TypeError):
        return math.nan


Figures = NDArray[np.float64]
"""One figure for each of n steps, (n,)."""
Columns = dict[str, Figures]
"""Figures by name: those of `StepMarks` and `BatchTimes`, or the columns of step records, in their
order."""


@dataclass(slots=True, init=False, eq=False)
class StepMarks:
    """A step's host times and device marks (`devices.Mark`; None where there is none).

    The loop that runs the step sets every field but the last three as it goes on. Once a recorder
    emits it, every mark is a time on the host's clock, and the loss a figure.

    There is no `__init__`, for speed: noting a step takes 0.15 us this way. A NamedTuple takes 0.32
    us by position and 0.87 us by name (medians of 200 interleaved rounds of 1,000 steps).
    """

    step: int
    epoch: int
    t_start: float
    """When the loop asked for the batch, in seconds on the host's clock, like the next two."""
    t_got: float
    """When the loop had the batch."""
    t_launched: float
    """When the last work of the step was launched."""
    decoded: Any
    """In the training stream, after the loader's own work on the batch on the device; None where
    there is none. The stream waits for the batch up to here, however early the loop received it."""
    copy_start: Any
    copy_end: Any
    prepared: Any
    """From `copy_end` to here the device prepared the batch for the step; None where that is part
    of the step."""
    compute_start: Any
    """Where compute begins, as the trainer's `step` reports it. Often it is the end of the copy.

    Where a separate stream prepared the batch, the training stream passes this mark after the
    previous step and after the copy."""
    backward_start: Any
    """Where the backward pass begins; None where that was not marked."""
    optimizer_start: Any
    """Where the optimizer steps; None where that was not marked."""
    compute_end: Any
    """None where nothing was computed."""
    loss: Any
    """A function that returns the loss, called once the device has passed the step; then the
    loss."""
    samples: int
    warmup: bool
    made: BatchTimes | None
    """Times of making the batch; None where the loader cannot tell."""
    outside_s: float
    """Seconds since the previous step that were neither part of a step nor a wait for a batch; NaN
    where unknown."""
    previous_end: float
    """When the device was done with the step before, or the mark of `StepRecorder.resume`: the gap
    counts from here."""
    kernel_s: float
    """What the launch probe says of a gated step; NaN of any other."""
    launch_idle_s: float
    """What the launch probe says of a step after the warm-up; NaN where it cannot tell."""


_MARKS = tuple(name for name in StepMarks.__slots__ if name != "made")
_marks_of = attrgetter(*_MARKS)
NAMES = _MARKS + BatchTimes._fields
"""All that is noted of a step."""
AT_ONCE = 256
"""Steps that are gathered together."""


def gather(steps: Iterable[StepMarks]) -> Columns:
    """Returns the marks of these steps by column. What is None is NaN.

    A few at a time stay in the CPU's caches from the first look to the last, which halves the cost
    where the training has filled them since the steps were noted.
    """
    noted = iter(steps)
    blocks = [np.empty(0)]
    while rows := [
        (*_marks_of(step), *(step.made or UNKNOWN_TIMES)) for step in islice(noted, AT_ONCE)
    ]:
        # Takes three quarters of np.array(rows)'s time; the training thread waits for the GIL
        # meanwhile.
        blocks.append(np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * len(NAMES)))
    return dict(zip(NAMES, np.concatenate(blocks).reshape(-1, len(NAMES)).T, strict=True))


def overlap(a_start: Figures, a_end: Figures, b_start: Figures, b_end: Figures) -> Figures:
    """Returns the lengths of the intersections of two spans each; 0 where they do not meet."""
    length: Figures = np.fmax(0.0, np.fmin(a_end, b_end) - np.fmax(a_start, b_start))
    return length


def derive(marks: Mapping[str, Figures]) -> Columns:
    """Returns the columns of these steps, as `recording.columns.StepRecord` explains them.

    What `marks` does not have of `NAMES` is not known.
    """
    t_start = marks["t_start"]
    t_got = marks["t_got"]
    before = marks["previous_end"]
    unknown = np.full(len(t_start), np.nan)
    marks = {**dict.fromkeys(NAMES, unknown), **marks}
    start = marks["compute_start"]
    copy_end = marks["copy_end"]
    exposed_s = overlap(t_start, t_got, before, start)
    of_others = np.nan_to_num(marks["other_wait_s"])
    if of_others.any():
        # As if all waits came before the work.
        exposed_of_others = np.nan_to_num(marks["other_exposed_s"])
        t_got = t_got + of_others
        start = start + exposed_of_others
        exposed_s = exposed_s + exposed_of_others
    end = np.where(np.isnan(marks["compute_end"]), start, marks["compute_end"])
    wait_s = t_got - t_start
    gap_s = start - before
    compute_s = end - start
    made_end = marks["end_s"]
    decoded = marks["decoded"]
    prepared = marks["prepared"]

    # A loader that decodes on the device hands over a batch that is not ready: the device waits for
    # it.
    on_device = ~np.isnan(decoded)
    waited_s = np.fmax(0.0, np.fmin(decoded, start) - np.fmax(t_got, before))
    decode_wait_s = np.where(on_device, waited_s, np.nan)
    if on_device.any():
        wait_s = np.where(on_device, wait_s + decode_wait_s, wait_s)
        exposed_s = np.where(on_device, exposed_s + decode_wait_s, exposed_s)
        made_end = np.where(decode_wait_s > 0, np.maximum(made_end, decoded), made_end)

    # What prepares the batch on the device is its work, so it is no part of the gap.
    on_device = ~np.isnan(prepared)
    began = np.fmax(copy_end, before)
    ended = np.fmin(prepared, start)
    device_prepare_s = np.where(on_device, np.fmax(0.0, ended - began), np.nan)
    if on_device.any():
        hidden_s = overlap(t_start, t_got, began, ended)
        exposed_s = np.where(on_device, exposed_s - hidden_s, exposed_s)
        gap_s = np.where(on_device, gap_s - device_prepare_s, gap_s)
        compute_s = np.where(on_device, compute_s + device_prepare_s, compute_s)

    # A batch may be made before it is requested: the hand-over is the part inside the wait.
    after_made_s = np.nan_to_num(marks["after_made_s"])
    hand_over_s = np.fmax(0.0, t_got - np.maximum(made_end, t_start) - after_made_s)
    derived = {
        "rank": np.zeros(len(t_start)),
        "t_start_s": t_start,
        "data_wait_s": wait_s,
        "h2d_s": copy_end - marks["copy_start"],
        "compute_start_s": start,
        "compute_s": compute_s,
        "gap_s": gap_s,
        "exposed_wait_s": exposed_s,
        "step_s": end - before,
        "h2d_start_s": marks["copy_start"],
        "host_s": marks["t_launched"] - t_got,
        "made_start_s": marks["start_s"],
        "made_end_s": made_end,
        "hand_over_s": np.where(made_end < t_got, hand_over_s, np.nan),
        "decode_wait_s": decode_wait_s,
        "device_prepare_s": device_prepare_s,
        "forward_compute_s": marks["backward_start"] - start,
        "backward_compute_s": marks["optimizer_start"] - marks["backward_start"],
        "optimizer_compute_s": end - marks["optimizer_start"],
    }
    return {name: derived[name] if name in derived else marks[name] for name in STEP_COLUMNS}
