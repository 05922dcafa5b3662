"""Moments of each step that follow from its columns, on the monotonic clock. All functions take and return (n,)
seconds.
"""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Floats, Series


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
