"""How many settings begin in a limited time, and how many go on."""

import pytest

from vitprof.analysis.tournament.halving import first_rung, rung_sizes


def test_the_best_third_goes_on_until_two_are_left() -> None:
    assert rung_sizes(9) == [9, 3]
    assert rung_sizes(12) == [12, 4, 2]
    assert rung_sizes(1) == [1]


@pytest.mark.parametrize(
    ("n", "runs", "expected"),
    [
        (12, 24, 12),  # 12 + 4 + 2 and the baseline each time: 21
        (12, 21, 12),
        (12, 20, 11),
        (32, 1000, 32),
        (32, 0, 2),
        (1, 0, 1),
        (0, 10, 0),
    ],
)
def test_how_many_can_begin(n: int, runs: int, expected: int) -> None:
    assert first_rung(n, runs, rounds=3) == expected
