"""How many settings a search can try in a time given."""

from __future__ import annotations

import itertools

from vitprof.analysis.tournament import LEAST_ROUNDS, Rung, rungs

DEFAULT_S = 240.0
"""For a search whose length nobody gives: enough to say something of the 40 settings of a DataLoader with workers."""
CHECKS = LEAST_ROUNDS
"""Times that winner and default are run again: with fewer their difference is hardly ever known."""
LEAST_S = 1.0
"""Seconds of training that say anything of a setting: 20 steps of 50 ms."""
CHECK_SHARE = 1 / 3
"""Of the time, for running winner and default again."""
LEAST_RUNS = 2
"""Settings besides the default that are worth a check; with time for fewer all of it goes into trying."""
OVERHEAD_S = {"process": 4.0, "thread": 0.3}
"""What a run takes besides its training, until the first one has shown it: a process imports torch (DESIGN.md 7)."""


def settings_within(seconds: float, n_candidates: int, a_run_s: float) -> int:
    """Returns how many of the settings a search of so long will try, about, if its shortest run takes `a_run_s`."""
    left_s = seconds - a_run_s
    steps = ladder(n_candidates, left_s - reserve_s(seconds, left_s, a_run_s), a_run_s)
    return steps[0].n if steps else 1


def seconds_for(n_tried: int, n_candidates: int, a_run_s: float) -> float:
    """Returns the least time, to ten seconds, in which a search tries so many settings, about."""
    return next(s for s in itertools.count(10.0, 10.0) if settings_within(s, n_candidates, a_run_s) >= n_tried)


def reserve_s(seconds: float, left_s: float, a_run_s: float) -> float:
    """Returns the time to keep for the check; none where it would leave hardly anything to choose from."""
    reserve_s = max(seconds * CHECK_SHARE, 2 * CHECKS * a_run_s)
    return reserve_s if left_s - reserve_s >= LEAST_RUNS * a_run_s else 0.0


def ladder(n_candidates: int, left_s: float, a_run_s: float) -> list[Rung]:
    """Returns the rungs for the time left, of which each run takes `a_run_s` at least; none where nothing fits."""
    return rungs(n_candidates, left_s, least_s=a_run_s) if left_s > 0 else []
