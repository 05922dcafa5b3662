"""How many settings a search can try in a given time."""

from __future__ import annotations

import itertools

from vitprof.analysis.tournament import LEAST_ROUNDS, Rung, rungs

DEFAULT_S = 240.0
"""Seconds of a search unless given: enough to name the best of the 40 settings of a DataLoader with workers."""
CHECKS = LEAST_ROUNDS
"""How often winner and default are run again: with fewer runs their difference is hardly ever known."""
LEAST_S = 1.0
"""Least seconds of training that say anything about a setting: 20 steps of 50 ms."""
CHECK_SHARE = 1 / 3
"""Share of the time for running winner and default again."""
LEAST_RUNS = 2
"""Least settings besides the default that are worth a check; with time for fewer, all of it goes into trying."""
OVERHEAD_S = {"process": 4.0, "thread": 0.3}
"""Seconds that a run takes besides its training, until the first one has shown it: a process has to import torch."""


def settings_within(seconds: float, n_candidates: int, a_run_s: float) -> int:
    """Returns about how many of the settings a search of `seconds` will try if its shortest run takes `a_run_s`."""
    left_s = seconds - a_run_s
    steps = ladder(n_candidates, left_s - reserve_s(seconds, left_s, a_run_s), a_run_s)
    return steps[0].n if steps else 1


def seconds_for(n_tried: int, n_candidates: int, a_run_s: float) -> float:
    """Returns the least seconds, a multiple of ten, in which a search tries about `n_tried` settings."""
    return next(s for s in itertools.count(10.0, 10.0) if settings_within(s, n_candidates, a_run_s) >= n_tried)


def reserve_s(seconds: float, left_s: float, a_run_s: float) -> float:
    """Returns the seconds to keep for the check; 0 where they would leave too little time to try settings."""
    reserve_s = max(seconds * CHECK_SHARE, 2 * CHECKS * a_run_s)
    return reserve_s if left_s - reserve_s >= LEAST_RUNS * a_run_s else 0.0


def ladder(n_candidates: int, left_s: float, a_run_s: float) -> list[Rung]:
    """Returns the rungs for the time left, with runs of at least `a_run_s` each; none where nothing fits."""
    return rungs(n_candidates, left_s, least_s=a_run_s) if left_s > 0 else []
