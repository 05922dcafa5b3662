"""The idle share of each bin, against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vitprof.analysis.timing.chain import from_seconds, union
from vitprof.analysis.timing.utilisation import idle_share

S = 1_000_000_000
NAN = float("nan")


def busy(*spans: tuple[float, float]) -> np.ndarray:
    return union(from_seconds(*np.array(spans, dtype=float).reshape(-1, 2).T))


def test_the_idle_share_of_bins_weighs_up_to_that_of_the_whole() -> None:
    working = busy((0.0, 1.0), (2.5, 3.0), (3.5, 3.75))
    edges = np.array([0, 1, 2, 3, 4]) * S
    assert idle_share(working, edges) == pytest.approx([0, 1, 0.5, 0.75])
    assert idle_share(working, edges[[0, 4]]) == pytest.approx([2.25 / 4])


def test_evaluation_is_neither_idle_nor_busy() -> None:
    working, evaluation = busy((0.0, 1.0), (2.0, 2.5)), busy((0.5, 2.25))
    edges = np.array([0, 1, 2, 3]) * S
    np.testing.assert_allclose(idle_share(working, edges, apart=evaluation), [0, NAN, 0.5 / 0.75])
    np.testing.assert_allclose(idle_share(working, edges, apart=busy()), idle_share(working, edges))
    np.testing.assert_array_equal(idle_share(working, np.array([S, S])), [NAN])
