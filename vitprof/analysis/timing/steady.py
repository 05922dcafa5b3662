"""Which steps of a run the figures rest on."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Mask, Series


def first_of_epoch(steps: Series) -> Mask:
    """Which steps begin an epoch, the very first included. (n,) bool."""
    epoch = steps["epoch"]
    return np.concatenate([np.ones(min(1, len(epoch)), dtype=bool), np.diff(epoch) > 0])


def steady_state(steps: Series) -> Mask:
    """Which steps steady-state figures rest on: neither warm-up nor first of an epoch. (n,) bool.

    Where every step is the first of its epoch (a batch as large as the set) only the warm-up is left out.
    """
    past_warmup = steps["warmup"] == 0
    steady = past_warmup & ~first_of_epoch(steps)
    return np.asarray(steady if steady.any() else past_warmup)
