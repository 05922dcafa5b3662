"""The line about a watched run: every step is counted at once, its figures follow twice a second."""

from __future__ import annotations

import numpy as np

from vitprof.cli.common.watched_so_far import ADD_EVERY_S, WatchedSoFar
from vitprof.recording.columns import STEP_COLUMNS


def rows(first: int, n: int = 10) -> np.ndarray:
    """Steps of 10 ms with 100 samples, a quarter of them data wait."""
    made = np.zeros((n, len(STEP_COLUMNS)))
    for name, values in {"step": np.arange(first, first + n), "samples": 100, "step_s": 0.01}.items():
        made[:, STEP_COLUMNS.index(name)] = values
    made[:, STEP_COLUMNS.index("data_wait_s")] = 0.0025
    return made


def test_figures_follow_the_steps() -> None:
    now = 0.0
    so_far = WatchedSoFar(lambda: now)
    assert so_far.words(3) == "vitprof run 3: waiting for a training loop over a DataLoader, 0 s"
    so_far.take(rows(0))
    assert "10 steps, 10,000 samples/s, data wait 25%" in so_far.words(3)
    slower = rows(10)
    slower[:, STEP_COLUMNS.index("step_s")] = 0.03
    so_far.take(slower)
    assert "20 steps, 10,000 samples/s" in so_far.words(3)
    now = ADD_EVERY_S
    so_far.take(rows(20, 1))
    assert "21 steps, 5,000 samples/s" in so_far.words(3), "all but the first step of an epoch"
