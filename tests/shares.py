"""What must hold of the steps of any run: no moment counts twice."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.recording.columns import RunSummary

ROUNDING_S = 1e-6
ROUNDING = 1e-6
SHARES = ("exposed_wait_frac", "device_idle_frac", "compute_frac", "exposed_h2d_frac")
"""Figures of a summary that are shares of the time in which a device idles, or computes."""


def check_steps(steps: Series) -> None:
    """Asserts that waits and work are parts of each step, and that they sum to it where the device works at once."""
    wait_s = steps["data_wait_s"]
    known = np.isfinite(wait_s) & np.isfinite(steps["compute_s"])
    for name in ("data_wait_s", "exposed_wait_s", "compute_s", "gap_s", "sampler_s", "iterator_s"):
        values = steps[name][known]
        assert (values[np.isfinite(values)] >= -ROUNDING_S).all(), f"{name} is negative"
    gap_s = steps["gap_s"][known]
    work_s = steps["compute_s"][known]
    # The gap before a device's first step is not known.
    step_s = steps["step_s"][known]
    assert np.allclose(gap_s + work_s, step_s, atol=ROUNDING_S, equal_nan=True)
    has_gap = np.isfinite(gap_s)
    most_s = np.minimum(wait_s[known], gap_s)[has_gap]
    assert (steps["exposed_wait_s"][known][has_gap] <= most_s + ROUNDING_S).all()
    for name in ("sampler_s", "iterator_s", "hand_over_s"):
        values = np.nan_to_num(steps[name][known])
        assert (values <= wait_s[known] + ROUNDING_S).all(), f"{name} is more than the wait"


def check_summary(summary: RunSummary) -> None:
    """Asserts that the shares of a run's summary are some, and that idle and busy time sum to all."""
    for name in SHARES:
        share = getattr(summary, name)
        assert np.isnan(share) or -ROUNDING <= share <= 1 + ROUNDING, f"{name} is {share}"
    whole = summary.device_idle_frac + summary.compute_frac
    assert np.isnan(whole) or abs(whole - 1) <= 1e-3, f"idle and busy time are {whole}"
