"""From steps to blocks: throughput over stretches of neighbouring steps, which are what a bootstrap may draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vitprof.analysis.bootstrap import BOOTSTRAP_BLOCKS
from vitprof.analysis.steady import steady_state
from vitprof.analysis.tournament.entries import Floats


def block_rates(steps: Mapping[str, Floats]) -> Floats:
    """samples/s of up to 20 blocks of neighbouring steady steps, in order. (n,) float64; empty without steady steps.

    `steps` are the (m,) columns of a run's steps. The blocks are those of `analysis.bootstrap`: alike in the number of
    steps, give or take one; with fewer than 20 steady steps each is a block.
    """
    steady = steady_state(steps) & np.isfinite(steps["step_s"])
    seconds, samples = steps["step_s"][steady], steps["samples"][steady]
    n = min(BOOTSTRAP_BLOCKS, len(seconds))
    if not n:
        return np.empty(0)
    edges = np.linspace(0, len(seconds), n + 1).astype(int)[:-1]
    took, made = np.add.reduceat(seconds, edges), np.add.reduceat(samples, edges)
    usable = (took > 0) & (made > 0)
    return np.asarray(made[usable] / took[usable], dtype=np.float64)
