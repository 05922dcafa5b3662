"""The columns of step records, from the marks of many steps at once: the one place with their formulas."""

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
    """Times of making one batch, in any thread or process: durations, and moments on the host's monotonic clock."""

    read_s: float
    """Seconds spent reading bytes from storage, over all samples. This and the next three are NaN where unknown."""
    decode_s: float
    transform_s: float
    collate_s: float
    start_s: float
    end_s: float
    worker: float = math.nan
    """Number of the worker process that made it; NaN where none did."""
    queue_depth: float = math.nan
    """Batches that were ready when the training loop asked for this one."""
    other_wait_s: float = 0.0
    """Seconds that the step waited for batches of other loaders, after it had this one."""
    other_exposed_s: float = 0.0
    """Those in which the device had nothing to do."""
    batch_values: float = math.nan
    """Numbers in its largest tensor: what a rank was given. This and the next four: where several ranks train."""
    between_s: float = math.nan
    """Seconds of the rank's own between the step before and this one, its wait for data aside."""
    collectives: float = math.nan
    """Collectives begun since the batch before."""
    awaited_s: float = math.nan
    """Seconds of waits for other ranks since then, where they are seen."""
    forward_s: float = math.nan
    """Seconds from the batch to the first backward pass on it, without waits for other ranks."""


UNKNOWN_TIMES = BatchTimes(*[math.nan] * 8)
"""The times of a loader that cannot tell."""


def n_ready(batches: Any) -> float:
    """Returns how many batches a DataLoader's workers have delivered and the loop, by its iterator `batches`, has not
    taken yet, pinned or not. NaN without workers, on a PyTorch with other private names, and on macOS.
    """
    tasks = getattr(batches, "_task_info", None)
    if tasks is None:  # no workers
        return math.nan
    try:
        came_early = sum(len(task) > 1 for task in tasks.values())  # delivered out of order
        queues = {id(queue): queue for queue in (batches._data_queue, batches._worker_result_queue)}
        return float(came_early + sum(queue.qsize() for queue in queues.values()))
    except (AttributeError, NotImplementedError, OSError, TypeError):
        return math.nan


Figures = NDArray[np.float64]
"""One figure for each of n steps, (n,)."""
Columns = dict[str, Figures]
"""Figures by name: those of `StepMarks` and `BatchTimes`, or the columns of step records, in their order."""


@dataclass(slots=True, init=False, eq=False)
class StepMarks:
    """A step's host times and device marks (`devices.Mark`; None where there is none).

    The loop that runs the step sets every field but the last three as it goes on. Once a recorder emits it, every mark
    is a time on the host's clock, and the loss a figure.

    There is no `__init__`, for speed: noting a step takes 0.15 us this way. A NamedTuple takes 0.32 us by position and
    0.87 us by name (medians of 200 interleaved rounds of 1,000 steps).
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
    """In the training stream, after the loader's own work on the batch on the device; None where there is none. The
    stream waits for the batch up to here, however early the loop received it."""
    copy_start: Any
    copy_end: Any
    prepared: Any
    """From `copy_end` to here the device prepared the batch for the step; None where that is part of the step."""
    compute_start: Any
    """Where compute begins: after the previous step, and after what prepared the batch, such as its copy."""
    compute_end: Any
    """None where nothing was computed."""
    loss: Any
    """A function that returns the loss, called once the device has passed the step; then the loss."""
    samples: int
    warmup: bool
    made: BatchTimes | None
    """Times of making the batch; None where the loader cannot tell."""
    outside_s: float
    """Seconds since the previous step that were neither part of a step nor a wait for a batch; NaN where unknown."""
    previous_end: float
    """When the device was done with the step before, or the mark of `StepRecorder.resume`: the gap counts from here."""
    kernel_s: float
    """What the launch probe says of a gated step; NaN of any other."""
    launch_idle_s: float
    """What the launch probe says of a step after the warm-up; NaN where it cannot tell."""


_MARKS = tuple(name for name in StepMarks.__slots__ if name != "made")
_marks_of = attrgetter(*_MARKS)
NAMES = _MARKS + BatchTimes._fields
AT_ONCE = 256


def gather(steps: Iterable[StepMarks]) -> Columns:
    """Returns the marks of these steps by column, NaN for None; a few at a time, which stay in the CPU's caches."""
    noted = iter(steps)
    blocks = [np.empty(0)]
    while rows := [
        (*_marks_of(step), *(step.made or UNKNOWN_TIMES)) for step in islice(noted, AT_ONCE)
    ]:
        # takes three quarters of np.array(rows)'s time; the training thread waits for the GIL meanwhile
        blocks.append(np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * len(NAMES)))
    return dict(zip(NAMES, np.concatenate(blocks).reshape(-1, len(NAMES)).T, strict=True))


def overlap(a_start: Figures, a_end: Figures, b_start: Figures, b_end: Figures) -> Figures:
    """Returns the lengths of the intersections of two spans each; 0 where they do not meet."""
    length: Figures = np.fmax(0.0, np.fmin(a_end, b_end) - np.fmax(a_start, b_start))
    return length


def derive(marks: Mapping[str, Figures]) -> Columns:
    """Returns the columns of these steps, see `recording.columns.StepRecord`; what is not in `marks` is not known."""
    t_start = marks["t_start"]
    t_got = marks["t_got"]
    before = marks["previous_end"]
    unknown = np.full(len(t_start), np.nan)
    marks = {**dict.fromkeys(NAMES, unknown), **marks}
    start = marks["compute_start"]
    copy_end = marks["copy_end"]
    exposed_s = overlap(t_start, t_got, before, start)
    if (
        of_others := np.nan_to_num(marks["other_wait_s"])
    ).any():  # as if all waits came before the work
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

    on_device = ~np.isnan(decoded)
    decode_wait_s = np.where(
        on_device, np.fmax(0.0, np.fmin(decoded, start) - np.fmax(t_got, before)), np.nan
    )
    if on_device.any():
        wait_s, exposed_s = (np.where(on_device, s + decode_wait_s, s) for s in (wait_s, exposed_s))
        made_end = np.where(decode_wait_s > 0, np.maximum(made_end, decoded), made_end)

    on_device = ~np.isnan(prepared)
    began = np.fmax(copy_end, before)
    ended = np.fmin(prepared, start)
    device_prepare_s = np.where(on_device, np.fmax(0.0, ended - began), np.nan)
    if on_device.any():
        exposed_s = np.where(
            on_device, exposed_s - overlap(t_start, t_got, began, ended), exposed_s
        )
        gap_s = np.where(on_device, gap_s - device_prepare_s, gap_s)
        compute_s = np.where(on_device, compute_s + device_prepare_s, compute_s)

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
        "hand_over_s": np.where(made_end < t_got, t_got - np.maximum(made_end, t_start), np.nan),
        "decode_wait_s": decode_wait_s,
        "device_prepare_s": device_prepare_s,
    }
    return {name: derived[name] if name in derived else marks[name] for name in STEP_COLUMNS}
