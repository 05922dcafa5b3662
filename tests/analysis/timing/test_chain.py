"""Interval arithmetic, against sets of whole nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.analysis.timing import chain

NAN = float("nan")
SPAN = 40
rows = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=12).map(
    lambda pairs: np.array([(min(p), max(p)) for p in pairs], dtype=np.int64).reshape(-1, 2)
)


def cells(intervals: np.ndarray) -> set[int]:
    """The nanoseconds that the rows cover, one by one."""
    return {t for start, end in intervals.tolist() for t in range(start, end)}


def assert_is_a_set(intervals: np.ndarray) -> None:
    assert intervals.dtype == np.int64
    assert intervals.shape[1:] == (2,)
    assert (intervals[:, 1] > intervals[:, 0]).all()
    assert (intervals[1:, 0] > intervals[:-1, 1]).all()  # what touches is one interval


@given(rows)
def test_a_union_covers_what_its_rows_cover(intervals: np.ndarray) -> None:
    merged = chain.union(intervals)
    assert_is_a_set(merged)
    assert (cells(merged), chain.total(merged)) == (cells(intervals), len(cells(intervals)))


@given(rows, st.integers(0, SPAN), st.integers(0, SPAN))
def test_a_set_and_its_complement_make_up_the_span(intervals: np.ndarray, start: int, end: int) -> None:
    rest = chain.complement(chain.union(intervals), start, end)
    assert_is_a_set(rest)
    assert cells(rest) == set(range(start, end)) - cells(intervals)
    inside = chain.intersect(chain.union(intervals), np.array([[start, max(start, end)]]))
    assert chain.total(rest) + chain.total(inside) == max(0, end - start)


@pytest.mark.slow
@given(rows, rows)
def test_an_intersection_covers_what_both_cover(a: np.ndarray, b: np.ndarray) -> None:
    both = chain.intersect(chain.union(a), chain.union(b))
    assert_is_a_set(both)
    assert cells(both) == cells(a) & cells(b)


@pytest.mark.slow
@given(rows, rows)
def test_each_row_is_told_how_much_of_it_is_covered(each: np.ndarray, within: np.ndarray) -> None:
    covered = cells(within)
    assert chain.overlap(each, chain.union(within)).tolist() == [len(cells(row[None]) & covered) for row in each]
    t = np.arange(-1, SPAN + 2)
    assert chain.covered_before(chain.union(within), t).tolist() == [len({c for c in covered if c < at}) for at in t]


def test_a_row_that_ends_before_it_starts_covers_nothing() -> None:
    assert chain.overlap(np.array([[9, 3]]), np.array([[0, 20]])).tolist() == [0]


def test_seconds_become_the_nearest_nanosecond_and_what_is_not_known_is_empty() -> None:
    start = np.array([1e6 + 0.1, NAN, 0.0, 2.0, 1e-9])
    end = np.array([1e6 + 0.2, 1.0, NAN, 1.5, 3.4e-9])
    assert chain.from_seconds(start, end).tolist() == [
        [1_000_000_100_000_000, 1_000_000_200_000_000],
        [0, 0],
        [0, 0],
        [2_000_000_000, 2_000_000_000],
        [1, 3],
    ]
    assert chain.nanoseconds(np.array([NAN, np.inf, -1.5e-9])).tolist() == [0, 0, -2]


@pytest.mark.parametrize("function", [chain.union, chain.total])
def test_no_interval_at_all_is_fine(function: object) -> None:
    none = np.empty((0, 2), dtype=np.int64)
    assert not np.size(function(none)) or function(none) == 0  # type: ignore[operator]
    assert (chain.complement(none, 3, 9).tolist(), chain.overlap(np.array([[0, 9]]), none).tolist()) == ([[3, 9]], [0])
