"""The columns of steps, checked against their formulas for one step at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.measure.step_columns import NAMES, UNKNOWN_TIMES, BatchTimes, StepMarks, derive, gather, overlap
from vitprof.recording.columns import STEP_COLUMNS

NAN = math.nan
FINITE = st.floats(-1e6, 1e6)
TIMES = st.floats(0, 4)
MADE = st.builds(
    BatchTimes, TIMES, TIMES, TIMES, TIMES, TIMES, TIMES, st.sampled_from([NAN, 0.0, 3.0]), TIMES, TIMES, TIMES
)


def common(a_start: float, a_end: float, b_start: float, b_end: float) -> float:
    return max(0.0, min(a_end, b_end) - max(a_start, b_start))


def by_hand(of: Any) -> dict[str, float]:
    """The columns of one step: what `derive` has to give."""
    made = of.made or UNKNOWN_TIMES._replace(other_wait_s=0.0, other_exposed_s=0.0)
    before, made_end = of.previous_end, made.end_s
    exposed_s = common(of.t_start, of.t_got, before, of.compute_start) + made.other_exposed_s
    start, got = of.compute_start + made.other_exposed_s, of.t_got + made.other_wait_s
    end = start if of.compute_end is None else of.compute_end
    wait_s = got - of.t_start
    gap_s, compute_s = start - before, end - start
    decode_wait_s = device_prepare_s = NAN
    if of.decoded is not None:
        decode_wait_s = max(0.0, min(of.decoded, start) - max(got, before))
        wait_s, exposed_s = wait_s + decode_wait_s, exposed_s + decode_wait_s
        made_end = max(made_end, of.decoded) if decode_wait_s else made_end
    if of.prepared is not None:
        began, ended = max(of.copy_end, before), min(of.prepared, start)
        device_prepare_s = max(0.0, ended - began)
        exposed_s -= common(of.t_start, got, began, ended)
        gap_s, compute_s = gap_s - device_prepare_s, compute_s + device_prepare_s
    return made._asdict() | {
        "rank": 0,
        "t_start_s": of.t_start,
        "data_wait_s": wait_s,
        "h2d_s": of.copy_end - of.copy_start,
        "compute_start_s": start,
        "compute_s": compute_s,
        "gap_s": gap_s,
        "exposed_wait_s": exposed_s,
        "step_s": end - before,
        "h2d_start_s": of.copy_start,
        "host_s": of.t_launched - got,
        "made_start_s": made.start_s,
        "made_end_s": made_end,
        "hand_over_s": got - max(made_end, of.t_start) if made_end < got else NAN,
        "decode_wait_s": decode_wait_s,
        "device_prepare_s": device_prepare_s,
        **{name: getattr(of, name) for name in ("step", "epoch", "samples", "loss", "warmup", "outside_s")},
        **{name: getattr(of, name) for name in ("kernel_s", "launch_idle_s")},
    }


@st.composite
def steps(draw: st.DrawFn) -> StepMarks:
    marks = StepMarks()
    for name in ("t_start", "t_got", "t_launched", "copy_start", "copy_end", "compute_start"):
        setattr(marks, name, draw(TIMES))
    for name in ("decoded", "prepared", "compute_end"):
        setattr(marks, name, draw(st.none() | TIMES))
    for name in ("previous_end", "loss", "outside_s", "kernel_s", "launch_idle_s"):
        setattr(marks, name, draw(st.just(NAN) | TIMES))
    marks.step, marks.epoch, marks.samples, marks.warmup = draw(st.integers(0, 2**53)), 3, 8, draw(st.booleans())
    marks.made = draw(st.none() | MADE)
    return marks


@given(st.lists(steps(), min_size=1, max_size=8))
def test_columns_of_many_steps_are_those_of_each(many: list[StepMarks]) -> None:
    columns = derive(gather(many))
    expected = [by_hand(step) for step in many]
    assert tuple(columns) == STEP_COLUMNS
    for name, column in columns.items():
        np.testing.assert_array_equal(column, [float(step[name]) for step in expected], err_msg=name)


def test_what_is_not_noted_is_not_known() -> None:
    noted = {name: np.zeros(2) for name in ("t_start", "t_got", "previous_end", "compute_start", "copy_end")}
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
