"""One step by its position, by a moment of a chart, and the one that is typical."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.series import made_steps
from vitprof.analysis.timing import timeline
from vitprof.analysis.timing.gaps import IDLE_CAUSES, find_gaps
from vitprof.analysis.timing.loading import by_worker
from vitprof.analysis.timing.timeline import (
    group_size,
    min_max,
    one_step,
    slices,
    step_at,
    typical_step,
)


@pytest.fixture
def steps() -> dict[str, np.ndarray]:
    """Ten steps of 30 ms wait and 10 ms compute. Two workers made their batches in 10, 20, 30 ... ms."""
    trace: dict[str, np.ndarray] = made_steps(
        [0.03] * 10, 0.01, worker=[0, 1] * 5, decode_s=0.004, hand_over_s=0.005
    )
    end = trace["t_start_s"] + 0.025
    return trace | {"made_end_s": end, "made_start_s": end - 0.01 * (1 + np.arange(10))}


def test_a_step_has_the_figures_of_its_row_and_each_worker_its_batches(steps: Any) -> None:
    step = one_step(steps, 3)
    assert (step.number, step.worker) == (3, 1)
    assert step.stages_s == {"decode": 0.004, "hand_over": 0.005}, (
        "what the loader did not tell is not there"
    )
    assert (step.made_s, step.lay_ready_s) == (pytest.approx(0.04), pytest.approx(-0.025))
    assert step.got_s - step.requested_s == pytest.approx(step.data_wait_s)
    even, odd = by_worker(steps, np.ones(10, dtype=bool))
    assert (even.worker, even.n_batches, odd.worker, odd.n_batches) == (0, 5, 1, 5)
    assert (even.made_s, odd.made_s) == (pytest.approx(0.05), pytest.approx(0.06))
    assert even.busy_frac == pytest.approx(0.25 / 0.4)
    steps["worker"][:] = np.nan
    assert by_worker(steps, np.ones(10, dtype=bool)) == ()


@pytest.mark.parametrize("began", [0.0, 100.0])
def test_the_step_at_a_moment_and_of_a_wait_whose_copy_is_late(steps: Any, began: float) -> None:
    for at in (0, 4, 9):
        begin = 100 + 0.04 * at
        for moment in (
            begin + 1e-5,
            begin + 0.03,
            begin + 0.04,
        ):  # in its gap, as its compute begins, as it ends
            assert step_at(steps, (moment - began) + began) == at
        assert step_at(steps, begin + 0.03, of_wait=True) == at
    assert step_at(steps, 1e9) == 9
    steps["compute_start_s"] = steps["compute_start_s"] + 0.05  # the device is behind
    assert step_at(steps, steps["t_start_s"][5] + 0.03, of_wait=True) == 5
    assert step_at(steps, steps["t_start_s"][5] + 0.03) == 4


def test_the_steps_to_look_at(steps: Any) -> None:
    keep = np.arange(10) >= 3
    assert typical_step(steps, keep) == 6
    steps["made_end_s"][6] = np.nan
    assert typical_step(steps, keep) == 5
    assert typical_step(steps, np.zeros(10, dtype=bool)) is None
    waits = np.array([0.5, 0.01, 0.01, 0.2, 0.01, 0.03])
    steps = made_steps(waits, np.full(6, 0.01), warmup=1)
    assert timeline.after_largest_gap(find_gaps(steps, ()).only(np.arange(6) > 0)) == 3
    assert timeline.after_largest_gap(find_gaps(steps, ()).only(np.arange(6) >= 4)) == 5


values = arrays(float, st.integers(1, 70), elements=st.floats(-100, 100) | st.just(np.nan))
powers = st.sampled_from([1, 2, 4, 8, 16, 64, 128])
times = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=60)


@given(st.integers(0, 10**9), st.integers(1, 2000))
def test_the_group_size_is_the_smallest_power_of_two_that_is_enough(n: int, most: int) -> None:
    k = group_size(n, most)
    assert k & (k - 1) == 0
    assert -(-n // k) <= most
    assert k == 1 or -(-n // (k // 2)) > most


@settings(max_examples=50)
@given(values, powers)
def test_each_group_keeps_its_lowest_and_its_highest_point_in_order_of_time(
    y: np.ndarray, k: int
) -> None:
    at = min_max(y, 0, len(y), k)
    if k == 1:
        assert at.tolist() == list(range(len(y)))
        return
    pairs = at.reshape(-1, 2)
    assert len(pairs) == -(-len(y) // k)
    assert (np.diff(at) >= 0).all()
    for i, pair in enumerate(pairs):
        group = y[i * k : (i + 1) * k]
        assert ((pair >= i * k) & (pair < i * k + len(group))).all()
        if np.isnan(group).all():
            assert pair.tolist() == [i * k, i * k]
        else:
            assert sorted(y[pair]) == [np.nanmin(group), np.nanmax(group)]


@settings(max_examples=50)
@given(values, powers, st.data())
def test_full_groups_never_change_while_the_run_grows(
    y: np.ndarray, k: int, data: st.DataObject
) -> None:
    whole = min_max(y, 0, len(y), k)
    edge = data.draw(st.integers(0, len(y) // k)) * k
    assert [*min_max(y, 0, edge, k), *min_max(y, edge, len(y), k)] == whole.tolist()
    assert min_max(y[: edge + 1], 0, edge, k).tolist() == min_max(y, 0, edge, k).tolist()


def test_infinite_values_stand_out_and_nothing_gives_nothing() -> None:
    y = np.array([1.0, np.inf, np.nan, -np.inf, 2.0, 3.0, 3.0, 3.0])
    assert min_max(y, 0, 8, 4).tolist() == [1, 3, 4, 5]
    s = slices(made_steps([], []), 0.0, 0, 0, 1)
    assert all(column.shape[-1] == 0 for column in vars(s).values())
    assert len(min_max(np.empty(0), 0, 0, 4)) == 0


@settings(max_examples=50)
@given(times, powers, st.floats(0, 1))
def test_groups_add_up_to_the_steps(pairs: list[tuple[float, float]], k: int, h2d: float) -> None:
    waits, computes = zip(*pairs, strict=True)
    steps = made_steps(waits, computes, h2d=h2d)
    n = len(waits)
    s = slices(steps, 90.0, 0, n, k)
    assert s.idle_s.sum() == pytest.approx(
        sum(waits) + n * h2d, abs=1e-7
    )  # causes are in whole nanoseconds
    assert (s.busy_s.sum(), s.wait_s.sum()) == (
        pytest.approx(sum(computes)),
        pytest.approx(sum(waits)),
    )
    assert s.n_steps.sum() == n
    groups = [slice(i, i + k) for i in range(0, n, k)]
    assert s.idle_s == pytest.approx([steps["gap_s"][g].sum() for g in groups], abs=1e-7)
    assert s.busy_s == pytest.approx([steps["compute_s"][g].sum() for g in groups])
    assert s.wait_s == pytest.approx([steps["data_wait_s"][g].sum() for g in groups])
    assert s.first_step.tolist() == [g.start for g in groups]
    # without pauses between steps the groups touch, and idle and busy time fill them
    assert (s.start_s[0], s.start_s[1:]) == (pytest.approx(10.0), pytest.approx(s.end_s[:-1]))
    assert s.start_s + s.idle_s + s.busy_s == pytest.approx(s.end_s, abs=1e-7)
    assert (s.end_s >= s.start_s - 1e-9).all()
    assert s.other_s == pytest.approx(np.zeros(len(groups)), abs=1e-7)
    assert s.causes_s[IDLE_CAUSES.index("data_wait")] == pytest.approx(s.wait_s, abs=1e-7)
    assert s.causes_s[IDLE_CAUSES.index("h2d")] == pytest.approx(h2d * s.n_steps, abs=1e-7)


@pytest.mark.parametrize(
    ("k", "other_s"), [(2, [0.0, 10.0]), (4, [10.0]), (1, [0.0, 0.0, 10.0, 0.0])]
)
def test_an_evaluation_is_neither_idle_nor_busy(k: int, other_s: list[float]) -> None:
    """Between two steps: the next step's gap is counted from its end, whether it falls into a group or between two."""
    steps = made_steps([0.5] * 4, [0.5] * 4, began=0.0)
    for name in ("t_start_s", "compute_start_s"):
        steps[name][2:] += 10.0
    s = slices(steps, 0.0, 0, 4, k)
    assert s.other_s.tolist() == other_s
    assert s.idle_s.tolist() == s.busy_s.tolist() == [0.5 * k] * (4 // k)
    assert s.end_s - s.start_s == pytest.approx(s.other_s + s.idle_s + s.busy_s)
    assert (s.start_s[0], s.end_s[-1]) == (0.0, 14.0)
