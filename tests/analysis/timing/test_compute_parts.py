"""The parts of compute, by figures that add up by hand."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.series import made_steps
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.compute_parts import (
    PARTS,
    ComputePart,
    DividedCompute,
    divide_compute,
    divided_compute_of,
    divided_figures,
    parts_in_words,
)
from vitprof.recording.columns import RunSummary

NAN = math.nan


def steps_of(**known: Any) -> Series:
    """Four steps of 8 s of compute; the first is part of the warm-up."""
    parts = {f"{name}_compute_s": values for name, values in known.items()}
    return made_steps([1.0] * 4, 8.0, warmup=1, **parts)


def divided(steps: Series) -> DividedCompute | None:
    return divide_compute(steps, steps["warmup"] == 0)


def fracs(found: DividedCompute | None) -> list[float]:
    assert found is not None
    assert tuple(part.name for part in found.parts) == PARTS
    return [part.frac for part in found.parts]


def test_shares_are_sums_over_sums_of_the_steps_that_count() -> None:
    steps = steps_of(forward=[9, 2, 3, 4], backward=[9, 4, 2, 3], optimizer=[9, 1, 1, 1])
    found = divided(steps)
    assert fracs(found) == pytest.approx([9 / 24, 9 / 24, 3 / 24, 3 / 24])
    assert found is not None
    assert (found.n, found.median_s) == (3, 8.0)
    assert [part.median_s for part in found.parts] == [3.0, 3.0, 1.0, 1.0]


def test_only_steps_with_all_marks_count() -> None:
    steps = steps_of(forward=[2, 2, NAN, 4], backward=[4, 4, NAN, 2], optimizer=[1, 1, NAN, NAN])
    found = divided(steps)
    assert fracs(found) == [0.25, 0.5, 0.125, 0.125]
    assert found is not None
    assert found.n == 1


def test_an_update_by_hand_is_among_the_other_work() -> None:
    found = divided(steps_of(forward=2, backward=4))
    assert fracs(found) == pytest.approx([0.25, 0.5, NAN, 0.25], nan_ok=True)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (0.75, "forward 25%, backward 50%, optimizer 9.4%, rest 16%"),
        (1.999, "forward 25%, backward 50%, optimizer 25%"),
        (NAN, "forward 25%, backward 50%, rest, with the update, 25%"),
    ],
)
def test_the_shares_in_words(optimizer: float, words: str) -> None:
    found = divided(steps_of(forward=2, backward=4, optimizer=optimizer))
    assert found is not None
    assert parts_in_words(found) == words


def test_steps_without_parts_have_none() -> None:
    assert divided(steps_of()) is None
    assert divided(steps_of(forward=2)) is None
    old = {name: column for name, column in steps_of().items() if "_compute_s" not in name}
    assert divided(old) is None
    no_steps = {name: column[:0] for name, column in steps_of(forward=2, backward=4).items()}
    assert divided(no_steps) is None
    assert divided_figures(None) == {}
    assert divided_compute_of(RunSummary()) is None


def test_a_summary_has_all_figures_and_gives_them_back() -> None:
    parts = tuple(
        ComputePart(name, frac, frac * 8)
        for name, frac in zip(PARTS, (0.25, 0.5, 0.125, 0.125), strict=True)
    )
    whole = DividedCompute(3, 8.0, parts)
    figures = divided_figures(whole)
    assert set(figures) <= {field.name for field in dataclasses.fields(RunSummary)}
    summary = RunSummary(n_divided_steps=whole.n, **figures)
    assert (summary.forward_compute_frac, summary.forward_compute_ms_median) == (0.25, 2000.0)
    assert divided_compute_of(summary) == whole


@given(st.lists(st.tuples(*[st.floats(1e-6, 1e3)] * 4), min_size=1, max_size=20))
def test_shares_add_up_to_one(rows: list[tuple[float, float, float, float]]) -> None:
    forward, backward, optimizer, rest = np.array(rows).T
    compute = forward + backward + optimizer + rest
    parts = {"forward": forward, "backward": backward, "optimizer": optimizer}
    columns = {f"{name}_compute_s": values for name, values in parts.items()}
    steps = made_steps([1.0] * len(rows), compute, **columns)
    assert sum(fracs(divided(steps))) == pytest.approx(1.0)
