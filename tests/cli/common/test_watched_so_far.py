"""The line about a watched run: every step is counted at once, its figures follow twice a second."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.cli.common.watched_so_far import ADD_EVERY_S, WatchedSoFar
from vitprof.recording.columns import STEP_COLUMNS


def steps(first: int, n: int = 10, step_s: float = 0.01) -> Series:
    """Steps with 100 samples and 2.5 ms of data wait."""
    known = {"step": np.arange(first, first + n, dtype=float), "samples": np.full(n, 100.0)}
    known |= {"step_s": np.full(n, step_s), "data_wait_s": np.full(n, 0.0025)}
    return {name: known.get(name, np.zeros(n)) for name in STEP_COLUMNS}


def test_figures_follow_the_steps() -> None:
    now = 0.0
    so_far = WatchedSoFar(lambda: now)
    assert so_far.words(3) == "vitprof run 3: waiting for a training loop over a DataLoader, 0 s"
    so_far.take(steps(0))
    assert "10 steps, 10,000 samples/s, data wait 25%" in so_far.words(3)
    so_far.take(steps(10, step_s=0.03))
    assert "20 steps, 10,000 samples/s" in so_far.words(3)
    now = ADD_EVERY_S
    so_far.take(steps(20, 1))
    assert "21 steps, 5,000 samples/s" in so_far.words(3), "all but the first step of an epoch"
