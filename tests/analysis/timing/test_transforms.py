"""Times of transforms, as a run's facts have them."""

from __future__ import annotations

from typing import Any

import pytest

from vitprof.analysis.timing.loading import heaviest, shares_in_words, transform_times


def told(**seconds: float) -> dict[str, Any]:
    return {"transforms": {name: {"s_per_sample": s, "calls": 10} for name, s in seconds.items()}}


def test_shares_in_the_order_of_the_compose() -> None:
    found = transform_times(told(ToTensor=0.001, Crop=0.003))
    assert [(t.name, t.calls, t.frac) for t in found] == [("ToTensor", 10, 0.25), ("Crop", 10, 0.75)]
    most = heaviest(found)
    assert most is not None
    assert most.name == "Crop"
    assert shares_in_words(found) == "Crop 75%, ToTensor 25%"


def test_many_of_them_are_cut() -> None:
    found = transform_times(told(**{f"T{i}": 0.001 for i in range(10)}))
    assert shares_in_words(found) == "T0 10%, T1 10%, T2 10%, T3 10%, T4 10%, T5 10%, 4 more 40%"


@pytest.mark.parametrize("facts", [{}, {"transforms": None}, {"transforms": [1]}, {"transforms": {"A": 1, "B": {}}}])
def test_a_run_that_does_not_have_them(facts: dict[str, Any]) -> None:
    assert (transform_times(facts), heaviest(())) == ((), None)


def test_those_that_take_no_time() -> None:
    found = transform_times(told(Identity=0.0))
    assert (len(found), heaviest(found), shares_in_words(found)) == (1, None, "")
