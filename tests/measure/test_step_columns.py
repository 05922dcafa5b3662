"""The columns of steps, by figures that were worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.measure.step_columns import NAMES, BatchTimes, StepMarks, derive, gather, overlap
from vitprof.recording.columns import STEP_COLUMNS

NAN = math.nan
FINITE = st.floats(-1e6, 1e6)


def marks_of(**values: Any) -> StepMarks:
    marks = StepMarks()
    for name in StepMarks.__slots__:
        setattr(marks, name, values.get(name, NAN))
    return marks


def test_columns_of_steps_with_and_without_what_is_optional() -> None:
    """The second one waited for a batch of another loader, too, of which the device had to wait for a part."""
    none = {"decoded": None, "prepared": None}
    first = {
        "previous_end": 1.0,
        "t_start": 1.125,
        "t_got": 1.375,
        "copy_start": 1.5,
        "copy_end": 1.75,
    }
    second = {
        "previous_end": 2.75,
        "t_start": 2.5,
        "t_got": 3.0,
        "copy_start": 3.0,
        "copy_end": 3.25,
    }
    made = BatchTimes(
        0.01, 0.02, 0.03, 0.04, 2.0, 2.75, 1.0, 3.0, other_wait_s=0.5, other_exposed_s=0.25
    )
    steps = [
        marks_of(
            **none,
            **first,
            step=2**53,
            compute_start=1.75,
            compute_end=None,
            t_launched=1.5,
            made=None,
        ),
        marks_of(
            **none,
            **second,
            step=1,
            compute_start=3.25,
            backward_start=3.625,
            optimizer_start=4.125,
            compute_end=4.25,
            t_launched=4.0,
            made=made,
            loss=9.0,
        ),
    ]
    expected = {name: [NAN, NAN] for name in STEP_COLUMNS} | {
        "rank": [0, 0],
        "step": [2**53, 1],
        "t_start_s": [1.125, 2.5],
        "data_wait_s": [0.25, 1.0],
        "exposed_wait_s": [0.25, 0.5],
        "h2d_start_s": [1.5, 3.0],
        "h2d_s": [0.25, 0.25],
        "compute_start_s": [1.75, 3.5],
        "compute_s": [0.0, 0.75],
        "gap_s": [0.75, 0.75],
        "step_s": [0.75, 1.5],
        "host_s": [0.125, 0.5],
        "read_s": [NAN, 0.01],
        "decode_s": [NAN, 0.02],
        "transform_s": [NAN, 0.03],
        "collate_s": [NAN, 0.04],
        "made_start_s": [NAN, 2.0],
        "made_end_s": [NAN, 2.75],
        "hand_over_s": [NAN, 0.75],
        "worker": [NAN, 1.0],
        "forward_compute_s": [NAN, 0.125],
        "backward_compute_s": [NAN, 0.5],
        "optimizer_compute_s": [NAN, 0.125],
        "queue_depth": [NAN, 3.0],
        "loss": [NAN, 9.0],
    }
    columns = derive(gather(steps))
    assert tuple(columns) == STEP_COLUMNS
    for name, values in expected.items():
        assert columns[name] == pytest.approx(values, nan_ok=True, abs=0), name


def test_batches_that_were_decoded_or_prepared_on_the_device() -> None:
    """Marks that the device passes before a step: two of DALI's, two of the prefetcher's, one of a resident set."""
    on_device = ("decoded", "copy_start", "copy_end", "prepared", "compute_start", "compute_end")
    names = ("previous_end", "t_start", "t_got", *on_device)
    rows = [
        # decoded 3 after the step before was done, which the loop did not wait for
        (2.0, 1.0, 1.5, 5.0, 5.0, 5.0, NAN, 5.0, 6.0),
        # decoded while the step before was running: passed as that was done
        (6.0, 1.5, 2.0, 6.0, 6.0, 6.0, NAN, 6.0, 8.0),
        # normalised from 7 to 9, beside the step before up to 8; nothing for 0.5, as it was not launched
        (8.0, 6.0, 6.5, NAN, 6.5, 7.0, 9.0, 9.5, 10.0),
        (10.0, 7.0, 7.5, NAN, 7.5, 8.0, 9.5, 10.0, 11.0),  # all beside it
        # the loop asked at 11.5 and had the batch at 13: 1 of that it was gathered
        (11.0, 11.5, 13.0, NAN, 12.0, 12.0, 13.0, 13.5, 14.0),
    ]
    columns = derive(dict(zip(names, np.array(rows).T, strict=True)))
    expected = {
        "decode_wait_s": [3.0, 0.0, NAN, NAN, NAN],
        "data_wait_s": [3.5, 0.5, 0.5, 0.5, 1.5],
        "exposed_wait_s": [3.0, 0.0, 0.0, 0.0, 0.5],
        "device_prepare_s": [NAN, NAN, 1.0, 0.0, 1.0],
        "compute_s": [1.0, 2.0, 1.5, 1.0, 1.5],
        "gap_s": [3.0, 0.0, 0.5, 0.0, 1.5],
        "step_s": [4.0, 2.0, 2.0, 1.0, 3.0],
        "h2d_s": [0.0, 0.0, 0.5, 0.5, 0.0],
    }
    for name, values in expected.items():
        assert columns[name] == pytest.approx(values, nan_ok=True, abs=1e-12), name


def test_what_is_not_noted_is_not_known() -> None:
    noted = {
        name: np.zeros(2)
        for name in ("t_start", "t_got", "previous_end", "compute_start", "copy_end")
    }
    columns = derive({**noted, "copy_start": np.zeros(2), "a mark of a later version": np.ones(2)})
    known = {name for name, column in columns.items() if not np.isnan(column).any()}
    always = "rank t_start_s data_wait_s h2d_s h2d_start_s compute_start_s compute_s gap_s exposed_wait_s step_s"
    assert known == set(always.split())
    assert set(noted) < set(NAMES)


@given(FINITE, FINITE, FINITE, FINITE)
def test_overlap(a: float, b: float, c: float, d: float) -> None:
    a, b, c, d = (np.array([x]) for x in (min(a, b), max(a, b), min(c, d), max(c, d)))
    both = overlap(a, b, c, d)
    assert both == overlap(c, d, a, b)
    assert 0 <= both <= min(b - a, d - c)
    assert (both > 0) == (max(a, c) < min(b, d))
    middle = (a + b) / 2
    assert overlap(a, middle, c, d) + overlap(middle, b, c, d) == pytest.approx(both, abs=1e-6)
