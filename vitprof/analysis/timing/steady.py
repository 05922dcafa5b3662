"""Which steps the figures of a run rest on, and when each of a step's events happened.

Moments are on the monotonic clock; all functions take columns and return (n,) arrays.
"""

from __future__ import annotations

import math

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series


def decode_wait_s(steps: Series) -> Floats:
    """Returns how long the device took to decode the batch after the loop had it; 0 where that is not known."""
    return _or_zero(steps, "decode_wait_s")


def prepare_s(steps: Series) -> Floats:
    """Returns how long the device prepared the batch after the previous step; 0 where that is not known."""
    return _or_zero(steps, "device_prepare_s")


def got_s(steps: Series) -> Floats:
    """Returns when the loop had the batch."""
    return np.asarray(steps["t_start_s"] + steps["data_wait_s"] - decode_wait_s(steps))


def launched_s(steps: Series) -> Floats:
    """Returns when the step was launched; NaN where `host_s` is not known."""
    return np.asarray(got_s(steps) + steps["host_s"])


def begin_s(steps: Series) -> Floats:
    """Returns where the gap before the step begins: at the end of the previous step, or where the recorder resumed."""
    return np.asarray(steps["compute_start_s"] - steps["gap_s"] - prepare_s(steps))


def end_s(steps: Series) -> Floats:
    """Returns when the device finished the step."""
    return np.asarray(steps["compute_start_s"] + steps["compute_s"] - prepare_s(steps))


def _or_zero(steps: Series, name: str) -> Floats:
    """Returns a column with 0 for what is not known; all 0 where an older run does not have it."""
    values = steps.get(name)
    return np.zeros(len(steps["t_start_s"])) if values is None else np.nan_to_num(values)


def first_of_epoch(steps: Series, *, epoch_before: float = -math.inf) -> Mask:
    """Returns which steps begin an epoch, the very first of the run included. (n,) bool.

    `epoch_before` is the epoch of the previous step, if these steps are not the first of the run.
    """
    return np.asarray(np.diff(steps["epoch"], prepend=epoch_before) > 0)


def past_warmup(steps: Series, *, epoch_before: float = -math.inf) -> tuple[Mask, Mask]:
    """Returns which steps after the warm-up are inside an epoch, and which of them begin one. (n,) bool each."""
    warm = steps["warmup"] == 0
    first = first_of_epoch(steps, epoch_before=epoch_before)
    return np.asarray(warm & ~first), np.asarray(warm & first)


def steady_state(steps: Series) -> Mask:
    """Returns the steps for steady-state figures: neither warm-up nor the first of an epoch. (n,) bool.

    If every step past the warm-up is the first of its epoch (a batch as large as the set), only the warm-up is left
    out. `totals.RunningTotals` adds up both masks of `past_warmup` as steps arrive, and chooses in the same way.
    """
    inside, begins = past_warmup(steps)
    return inside if inside.any() else begins


def wall_clock_weights(steps: Series) -> Floats:
    """Returns how often each step counts in the wall clock of training: steady steps once, the rest of the warm-up
    never. (n,) float.

    The first step of each epoch but the run's first counts as well, a little more than once: the first epoch began like
    the others, but how long that took cannot be told from start-up.
    """
    steady = steady_state(steps)
    starts = (steps["warmup"] == 0) & first_of_epoch(steps) & ~steady
    starts[:1] = False
    n = int(starts.sum())
    return np.asarray(np.where(starts, (n + 1) / max(n, 1), steady.astype(float)))


def while_steady(steps: Series, t_s: Floats) -> Mask:
    """Returns which moments `t_s` are between the starts of the first and the last steady step. (m,) bool.

    They may be those of telemetry. `steps` needs t_start_s, epoch and warmup.
    """
    start = steps["t_start_s"][steady_state(steps)]
    if not len(start):
        return np.zeros(len(t_s), dtype=bool)
    return np.asarray((t_s >= start[0]) & (t_s <= start[-1]))
