"""A small version of the simulation in docs/tournament.md: 12 tournaments of each kind, the same
ones."""

import pytest

from benchmarks.while_busy import KINDS, ONE, WAITS, WORKERS, Line, line_of, played, shared

N = 12


def line(kind: str, ratio: float, others: float) -> Line:
    return line_of([played(kind, ratio, others, seed) for seed in range(N)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [0.3, 2.0])
def test_what_is_no_faster_is_never_called_faster(kind: str, others: float) -> None:
    assert line(kind, 1.0, others).false == 0


@pytest.mark.parametrize("kind", ["alike", "more workers", "waits more"])
def test_a_far_faster_setting_is_called_faster_and_its_bound_is_true(kind: str) -> None:
    found = line(kind, 3.0, 2.0)
    assert found.said + found.firm >= 0.7
    assert found.said >= 0.4
    assert found.above == 0
    assert found.bound <= 1


def test_cores_are_shared_evenly_among_threads() -> None:
    assert shared(ONE, 0.3).job == 1.0
    assert shared(ONE, 2.0).job == pytest.approx(2 / 3)
    assert shared(WORKERS, 2.0).job == pytest.approx(6 / 5)
    assert shared(WAITS, 2.0).job == pytest.approx(0.6), "less than its share is all it wants"
    assert not shared(ONE, 1.0).full
    assert shared(WORKERS, 0.3).others == pytest.approx(0.3)
