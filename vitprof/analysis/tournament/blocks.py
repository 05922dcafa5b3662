"""From steps to blocks: throughput over spans of neighbouring steps, which are what a bootstrap may draw."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.bootstrap import BOOTSTRAP_BLOCKS
from vitprof.analysis.timing.steady import steady_state


def block_rates(steps: Series) -> Floats:
    """samples/s of up to 20 blocks of neighbouring steady steps, in order. (n,) float64; empty without steady steps.

    `steps` are the (m,) columns of a run's steps. All blocks have the same number of samples, so that their harmonic
    mean is samples over time of all steady steps; a step that lies across a border counts for both by its share. With
    fewer than 20 steady steps of one batch size each is a block.
    """
    steady = steady_state(steps) & np.isfinite(steps["step_s"]) & (steps["samples"] > 0)
    seconds, samples = steps["step_s"][steady], steps["samples"][steady]
    n = min(BOOTSTRAP_BLOCKS, len(seconds))
    if not n:
        return np.empty(0)
    made, passed = (np.concatenate([[0.0], np.cumsum(values)]) for values in (samples, seconds))
    took = np.diff(np.interp(np.linspace(0, made[-1], n + 1), made, passed))
    return np.asarray(made[-1] / n / took[took > 0], dtype=np.float64)
