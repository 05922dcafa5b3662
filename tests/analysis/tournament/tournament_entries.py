"""Settings whose throughput is drawn from a known distribution."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitprof.analysis.tournament.entries import Entry, RunOutcome, trial_key
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow, leaderboard
from vitprof.recording.columns import RunSummary


def entry(
    strategy: str,
    per_s: float,
    *,
    noise: float = 0.02,
    runs: int = 3,
    seed: int = 0,
    moments: np.ndarray | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    page_cache: str = "as-is",
    status: str = "done",
    reason: str = "",
    prepare_s: float = 0.0,
    disk: float = 0.0,
    ram: float = 0.0,
    **summary: float,
) -> Entry:
    """A setting of mean `per_s`; blocks vary by the share `noise`, whole rounds by `moments`, (runs,) logarithms."""
    rng = np.random.default_rng([seed, *strategy.encode(), batch_size])
    shifts = np.zeros(runs) if moments is None else moments
    outcomes = tuple(
        RunOutcome(
            number + 1,
            number + 100,
            "done",
            per_s * np.exp(shifts[number] + rng.normal(0, noise, 20)),
            RunSummary(**({"n_steady_steps": 100} | summary)),
        )
        for number in range(runs)
    )
    key = trial_key(strategy, batch_size, workers, page_cache)
    asked = (key, strategy, batch_size, workers, page_cache)
    return Entry(*asked, outcomes, status, reason, prepare_s, disk, ram)  # type: ignore[arg-type]


def with_runs(made: Entry, **changed: Sequence[Any]) -> Entry:
    """Returns an entry whose runs have other values, one for each run; fewer values leave fewer runs."""
    values = [dict(zip(changed, row, strict=True)) for row in zip(*changed.values(), strict=True)]
    runs = tuple(
        dataclasses.replace(run, **new) for run, new in zip(made.outcomes, values, strict=False)
    )
    return dataclasses.replace(made, outcomes=runs)


def ranked(*made: Entry, baseline: str = "", n_train: int = 0) -> Leaderboard:
    """Returns the leaderboard of entries; the first is the baseline unless another is named."""
    return leaderboard(made, baseline=baseline or made[0].key, n_train=n_train)


def row_of(board: Leaderboard, made: Entry) -> LeaderboardRow:
    row = board.row(made.key)
    assert row is not None
    return row
