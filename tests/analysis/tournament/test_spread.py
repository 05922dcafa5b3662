"""Intervals over few rounds: they hold the truth about as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.tournament.tournament_entries import entry
from vitprof.analysis.tournament import leaderboard
from vitprof.analysis.tournament.spread import Spread, _moderated, student_t


@pytest.mark.parametrize(("settings", "rounds"), [(2, 3), (6, 2)])
def test_the_interval_holds_the_truth(settings: int, rounds: int) -> None:
    """Runs differ by 1% beyond what their blocks show; of 120 intervals of 95%, 107 or fewer hold it by chance
    in 1%."""
    held = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        made = [
            entry(f"s{i}", 1000, seed=seed, runs=rounds, moments=rng.normal(0, 0.01, rounds)) for i in range(settings)
        ]
        row = leaderboard(made, baseline=made[0].key, n_train=0).row(made[1].key)
        assert row is not None
        held += row.speed_up_low <= 1 <= row.speed_up_high
    assert held > 107


def test_students_t() -> None:
    known = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 10: 2.228, 30: 2.042}
    for df, value in known.items():
        assert student_t(df) == pytest.approx(value, rel=0.008)


def test_few_rounds_lean_on_the_other_settings() -> None:
    own, others = Spread(4.0, 1), [Spread(1.0, 2), Spread(1.0, 2), Spread(100.0, 2), Spread(float("nan"), 0)]
    mixed = _moderated(own, others)
    assert mixed.df == 5
    assert mixed.variance == 4  # never less than its own
    quiet = _moderated(Spread(0.1, 1), others)
    assert 0.1 < quiet.variance < 2  # one noisy setting among the others does not matter
    assert _moderated(own, []) == own
    assert _moderated(Spread(float("nan"), 0), others[:1]).df == 2
