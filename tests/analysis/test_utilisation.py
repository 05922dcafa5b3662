"""What a trailing counter shows, and the idle share of each bin, against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.analysis.intervals import from_seconds, union
from vitprof.analysis.utilisation import counter_pct, idle_share

S = 1_000_000_000
NAN = float("nan")


def busy(*spans: tuple[float, float]) -> np.ndarray:
    return union(from_seconds(*np.array(spans, dtype=float).reshape(-1, 2).T))


def test_the_counter_tells_of_the_time_before_it() -> None:
    once = busy((10.0, 10.5))
    t = np.array([9.0, 10.0, 10.25, 10.5, 11.0, 11.25, 11.5, 12.0])
    assert counter_pct(once, t, window_s=1.0) == pytest.approx([0, 0, 25, 50, 50, 25, 0, 0])
    assert counter_pct(once, t, window_s=0.5) == pytest.approx([0, 0, 50, 100, 0, 0, 0, 0])
    assert counter_pct(busy(), t).tolist() == [0] * 8


@given(st.floats(0.001, 0.2), st.floats(0.0, 1.0), st.floats(0.15, 1.0))
def test_steps_much_shorter_than_the_window_show_their_busy_share(step_s: float, share: float, window_s: float) -> None:
    """A step that begins or ends inside the window is all that the counter can be off by."""
    start = np.arange(0, 5, step_s)
    shown = counter_pct(union(from_seconds(start, start + share * step_s)), np.arange(1.5, 4.5, 0.2), window_s=window_s)
    assert np.abs(shown - 100 * share).max() <= 100 * step_s / window_s + 1e-4
    assert ((shown >= 0) & (shown <= 100)).all()


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
