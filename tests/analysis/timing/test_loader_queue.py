"""A replay of a DataLoader's queue takes as long as the queue itself, as it was and with other times."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.timing.loader_runs import run_of
from vitprof.analysis.arrays import Floats
from vitprof.analysis.timing.loader_queue import LEAST_STEPS, queue_of, without

N = 200


def times(seed: int, mean_s: float) -> Floats:
    random = np.random.default_rng(seed)
    return mean_s * np.exp(0.3 * random.standard_normal(N))


def with_slow_batches(made_s: Floats, seed: int, n: int = 10, excess_s: float = 0.3) -> Floats:
    slow = np.random.default_rng(seed).choice(np.arange(20, N), n, replace=False)
    excess = np.zeros(N)
    excess[slow] = excess_s
    return made_s + excess


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("made_s", [0.005, 0.03])
def test_batches_made_faster_gain_what_the_queue_itself_gains(
    seed: int, prefetch: int, workers: int, made_s: float
) -> None:
    usual_s = times(seed, made_s)
    slow_s = with_slow_batches(usual_s, seed)
    work_s = times(seed + 100, 0.01)
    was = run_of(slow_s, work_s, workers, prefetch)
    would_be = run_of(usual_s, work_s, workers, prefetch)
    queue = queue_of(was.steps, workers, prefetch)
    assert queue is not None
    replay = queue.replay
    assert replay.ends_s[-1] == pytest.approx(was.took_s, rel=0.01)
    assert replay.waits_s.sum() == pytest.approx(was.steps["data_wait_s"].sum(), rel=0.05, abs=0.02)
    faster = without(queue, slow_s - usual_s).replay
    assert faster.ends_s[-1] == pytest.approx(would_be.took_s, rel=0.01)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_what_a_worker_takes_before_it_begins_stays(workers: int) -> None:
    """It puts the batch before into the queue, and reads the request: a replay without that takes too little time."""
    usual_s = times(1, 0.01)
    slow_s = with_slow_batches(usual_s, 2)
    work_s = times(3, 0.001)
    was = run_of(slow_s, work_s, workers, idle_s=0.004)
    would_be = run_of(usual_s, work_s, workers, idle_s=0.004)
    queue = queue_of(was.steps, workers, 2)
    assert queue is not None
    assert queue.replay.ends_s[-1] == pytest.approx(was.took_s, rel=0.01)
    faster = without(queue, slow_s - usual_s).replay
    assert faster.ends_s[-1] == pytest.approx(would_be.took_s, rel=0.02)


def test_a_device_that_works_on_meanwhile_hides_what_it_can() -> None:
    """The loop launches 20 ms of work in 1 ms: slow batches of 100 ms show by the rest of that."""
    made_s = np.full(N, 0.015)
    slow = np.arange(20, N, 30)
    made_s[slow] += 0.1
    run = run_of(made_s, np.full(N, 0.001), 0)
    steps = {**run.steps, "compute_s": np.full(N, 0.016)}
    queue = queue_of(steps, 0, None, is_asynchronous=True)
    assert queue is not None
    excess_s = np.zeros(N)
    excess_s[slow] = 0.1
    was, left = queue.replay, without(queue, excess_s).replay
    counted = np.ones(N, dtype=bool)
    assert was.took_s(counted) - left.took_s(counted) == pytest.approx(0.6, abs=0.02)


def test_what_does_not_follow_the_rules_of_the_queue_tells_nothing() -> None:
    run = run_of(times(1, 0.02), times(2, 0.01), 2)
    assert queue_of(run.steps, 2, 2) is not None
    few = {name: values[: LEAST_STEPS - 1] for name, values in run.steps.items()}
    assert queue_of(few, 2, 2) is None
    unknown = {**run.steps, "made_end_s": np.full(N, np.nan)}
    assert queue_of(unknown, 2, 2) is None
    assert queue_of(run.steps, 0, None) is None, "workers made them"
    other_times = {**run.steps, "made_start_s": run.steps["made_end_s"] - 0.2}
    assert queue_of(other_times, 2, 2) is None, "the replay takes much longer than the run did"


def test_each_epoch_begins_with_its_workers() -> None:
    first = run_of(times(1, 0.02), times(2, 0.01), 2).steps
    second = run_of(times(3, 0.02), times(4, 0.01), 2).steps
    later_s = first["t_start_s"][-1] + first["data_wait_s"][-1] + first["compute_s"][-1] - 100.0
    moments = ("t_start_s", "made_start_s", "made_end_s", "compute_start_s")
    both = {
        name: np.concatenate(
            [values, second[name] + (later_s if name in moments else 0.0) + (name == "epoch")]
        )
        for name, values in first.items()
    }
    queue = queue_of(both, 2, 2)
    assert queue is not None
    assert queue.epoch_starts.tolist() == [0, N]
    took_s = both["t_start_s"][-1] + both["data_wait_s"][-1] - 100.0
    assert queue.replay.ends_s[-1] == pytest.approx(took_s, rel=0.01)
