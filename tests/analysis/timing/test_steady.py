"""Which steps a stop fell into, on steps whose stall is known."""

from dataclasses import replace

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.timing.steady import (
    in_stops,
    plain_stops,
    stop_sentence,
    stopped_s,
    stops_of,
    stops_of_rank,
)
from vitprof.analysis.timing.summary import epoch_seconds
from vitprof.recording.columns import Stop, StopKind

WAIT_S, COMPUTE_S, N = 0.002, 0.008, 200


def stalled(at: int, seconds: float, *, in_compute: bool = False) -> dict[str, np.ndarray]:
    waits, computes = np.full(N, WAIT_S), np.full(N, COMPUTE_S)
    (computes if in_compute else waits)[at] += seconds
    return dict(made_steps(waits, computes, epochs=[0] * 50 + [1] * 75 + [2] * 75))


@pytest.mark.parametrize("in_compute", [False, True])
@pytest.mark.parametrize("kind", ["stopped", "paused"])
@pytest.mark.parametrize(
    ("at", "seconds", "late", "early"),
    [(0, 1.0, 0.2, 0.2), (57, 60.0, 0.0, 0.2), (N - 1, 5.0, 0.1, 0.0)],
)
def test_the_step_that_the_stop_fell_into_and_no_other(
    kind: StopKind, in_compute: bool, at: int, seconds: float, late: float, early: float
) -> None:
    """The stop is seen a little after it began and before it was over."""
    steps = stalled(at, seconds, in_compute=in_compute)
    begin = steps["t_start_s"][at] + (WAIT_S if in_compute else 0.0)
    stop = Stop(kind, begin + late, begin + seconds - early, seconds)
    assert np.flatnonzero(in_stops(steps, [stop])).tolist() == [at]
    took = stopped_s(steps, [stop])
    assert took.sum() == pytest.approx(seconds)
    assert stops_of({"stops": plain_stops([stop])}) == (stop,)


def test_stops_that_are_in_no_step_or_in_one_and_what_is_said() -> None:
    steps = stalled(100, 5.0)  # a drive that did not answer, while we were stopped for longer
    begin = steps["t_start_s"][100]
    assert not in_stops(steps, [Stop("paused", begin - 1.0, begin + 5.9, 6.9)]).any()
    steps = made_steps([WAIT_S] * N, [COMPUTE_S] * N)
    stop = Stop("asleep", steps["t_start_s"][50] + 0.001, steps["t_start_s"][50] + 0.001, 3600.0)
    assert np.flatnonzero(in_stops(steps, [stop])).tolist() == [50]
    assert not stopped_s(steps, [stop]).any()
    said = stop_sentence(Stop("stopped", 0, 19.8, 20.0), 1)
    assert said.startswith(
        "20.0 s in which the job was stopped (by a signal or a debugger) are left out: "
    )
    assert said.endswith(" are those of the other steps (left out: 1 step)")
    assert (
        stop_sentence(Stop("asleep", 0, 0, 3600.0), 0)
        == "1 h 00 min in which the machine slept fell into no step"
    )


def test_of_a_stopped_worker_the_wait_that_ended_with_it() -> None:
    """Before it the others had batches ready: the stop begins some steps earlier."""
    steps = stalled(100, 5.0)
    begin = steps["t_start_s"][100]
    hit = in_stops(steps, [Stop("worker", begin - 0.3, begin + 4.9, 5.2)])
    assert np.flatnonzero(hit).tolist() == [100]
    assert not in_stops(steps, [Stop("worker", begin - 0.3, begin + 6.0, 6.3)]).any(), (
        "it ended before the worker ran"
    )
    assert not in_stops(steps, [Stop("worker", 100.0, 100.4, 0.6)]).any(), "nobody waited for it"
    stop = Stop("stopped", begin + 0.1, begin + 4.9, 5.0)
    assert epoch_seconds(steps, 750, np.nan)[0] == pytest.approx((0.75 + 5.75) / 2)
    assert epoch_seconds(steps, 750, np.nan, [stop]) == (pytest.approx(0.75), 2), (
        "the time of an epoch is without it"
    )


def test_of_another_rank_that_was_stopped_the_step_that_waited_until_it_went_on() -> None:
    """That step waits in its backward pass. Before it this rank goes on: with gradient accumulation for long."""
    steps = stalled(100, 5.0, in_compute=True)
    begin = steps["t_start_s"][100]
    for since_s in (begin - 0.03, begin - 0.5):
        stop = Stop("stopped", since_s, begin + 4.9, 5.2, rank=1)
        assert np.flatnonzero(in_stops(steps, [stop])).tolist() == [100]
    assert stopped_s(steps, [stop])[100] == pytest.approx(5.0, abs=0.1)
    assert not in_stops(steps, [Stop("stopped", 50.0, 60.0, 10.0, rank=1)]).any(), "before it began"


def test_of_another_rank_s_worker_only_where_that_rank_waited_for_it() -> None:
    steps = stalled(100, 5.0, in_compute=True)
    begin = steps["t_start_s"][100]
    stop = Stop("worker", begin + 0.1, begin + 4.9, 5.0, rank=1)
    waited = stalled(100, 5.0)
    assert np.flatnonzero(in_stops(steps, [stop], {1: waited})).tolist() == [100]
    had_batches = made_steps([WAIT_S] * N, [COMPUTE_S] * N)
    assert not in_stops(steps, [stop], {1: had_batches}).any()


def test_what_a_stop_is_to_each_rank() -> None:
    own, other = Stop("stopped", 0, 1, 1.0), Stop("worker", 2, 3, 1.0, rank=3)
    assert [stop.rank for stop in stops_of_rank([own, other], 3, own=2)] == [2, None]
    assert [stop.rank for stop in stops_of_rank([own, other], 4, own=2)] == [2, 3]
    assert stop_sentence(replace(own, rank=1), 1).startswith(
        "1.00 s in which rank 1 was stopped (by a signal or a debugger) are left out: "
    )
