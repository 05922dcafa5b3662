"""Moments of each step that follow from its columns, on the monotonic clock. All take and give (n,) seconds."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Floats, Series


def decode_wait_s(steps: Series) -> Floats:
    """Returns how long the device waited for the batch to be decoded on it, after the loop had it; 0 where it is not
    known to have.
    """
    return _or_zero(steps, "decode_wait_s")


def prepare_s(steps: Series) -> Floats:
    """Returns how long the device prepared the batch after the step before; 0 where it is not known to have."""
    return _or_zero(steps, "device_prepare_s")


def got_s(steps: Series) -> Floats:
    """Returns when the loop had the batch."""
    return np.asarray(steps["t_start_s"] + steps["data_wait_s"] - decode_wait_s(steps))


def launched_s(steps: Series) -> Floats:
    """Returns when the step was launched; NaN where `host_s` is not known."""
    return np.asarray(got_s(steps) + steps["host_s"])


def begin_s(steps: Series) -> Floats:
    """Returns where the gap before the step begins: the end of the step before, or where the recorder resumed."""
    return np.asarray(steps["compute_start_s"] - steps["gap_s"] - prepare_s(steps))


def end_s(steps: Series) -> Floats:
    """Returns when the device was done with the step."""
    return np.asarray(steps["compute_start_s"] + steps["compute_s"] - prepare_s(steps))


def _or_zero(steps: Series, name: str) -> Floats:
    """Returns a column with 0 for what is not known, as in all steps of older runs."""
    values = steps.get(name)
    return np.zeros(len(steps["t_start_s"])) if values is None else np.nan_to_num(values)
