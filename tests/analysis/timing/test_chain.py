"""Interval arithmetic, against sets of whole nanoseconds."""

import numpy as np
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


@given(rows)
def test_a_union_covers_what_its_rows_cover_also_before_each_moment(intervals: np.ndarray) -> None:
    merged, t = chain.union(intervals), np.arange(-1, SPAN + 2)
    assert merged.dtype == np.int64
    assert merged.shape[1:] == (2,)
    assert (merged[:, 1] > merged[:, 0]).all()
    assert (merged[1:, 0] > merged[:-1, 1]).all(), "what touches is one interval"
    assert cells(merged) == cells(intervals)
    assert chain.covered_before(merged, t).tolist() == [
        len({c for c in cells(merged) if c < at}) for at in t
    ]


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
