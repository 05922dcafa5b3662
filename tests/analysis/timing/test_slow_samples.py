"""What slow samples cost, and how it is said."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.analysis.timing.loader_runs import LoaderRun, run_of
from tests.series import made_telemetry
from vitprof.analysis.signatures import find_signatures
from vitprof.analysis.timing.slow_samples import MOST_REMOVED, SlowSamples, slow_samples
from vitprof.analysis.timing.steady import Trace
from vitprof.config.own_script import own_config

N = 200
USUAL_S = 0.016
SLOW_S = 0.5
MEDIAN_S = 0.001
SLOW_STEPS = tuple(range(20, N, 9))
WATCHED = {"num_workers": 2, "prefetch_factor": 2}
ENVIRONMENT = {"watched": WATCHED}


def fact(steps: tuple[int, ...] = SLOW_STEPS, seconds: float = SLOW_S) -> dict[str, Any]:
    listed = [
        {
            "index": 1000 + step,
            "times": 1,
            "total_s": seconds,
            "longest_s": [seconds],
            "steps": [step],
            "file": f"/data/{step}.jpg" if step == 20 else "",
            "file_bytes": 24 << 20 if step == 20 else None,
        }
        for step in steps
    ]
    return {"slow_samples": {"timed": 3200, "median_s": MEDIAN_S, "p99_s": 0.002, "listed": listed}}


def run(seconds: float = SLOW_S) -> Any:
    made_s = np.full(N, USUAL_S)
    made_s[list(SLOW_STEPS)] += seconds - MEDIAN_S
    return run_of(made_s, np.full(N, 0.01), 2)


def trained_s(of: LoaderRun) -> float:
    """Returns how long it took after the warm-up."""
    ends = of.steps["t_start_s"] + of.steps["step_s"]
    return float(ends[-1] - ends[5])


def found(facts: dict[str, Any], **watched: Any) -> SlowSamples:
    of_run = slow_samples(facts, {"watched": {**WATCHED, **watched}}, run().steps)
    assert of_run is not None
    return of_run


def test_the_gain_is_that_of_a_run_without_them() -> None:
    samples = found(fact())
    assert len(SLOW_STEPS) == MOST_REMOVED
    would_be = run(seconds=MEDIAN_S)
    assert 1 - samples.saved_frac == pytest.approx(trained_s(would_be) / trained_s(run()), rel=0.01)
    left = would_be.steps["data_wait_s"][5:].sum() / run().steps["data_wait_s"][5:].sum()
    assert 1 - samples.waits_frac == pytest.approx(left, abs=0.01)
    assert samples.sentence == (
        "Sample 1,020 (20.jpg, 24.0 MiB) takes 500 ms, 500 times the median. Without the 20 slowest "
        "samples about 100% of the waits for data would go, and 83% of the time."
    )


def test_the_slowest_are_removed_and_all_are_listed() -> None:
    many = tuple(range(20, 80))
    samples = found(fact(steps=many))
    assert (len(samples.listed), samples.removed) == (60, MOST_REMOVED)
    assert samples.listed[1].words == "sample 1,021"


def test_without_slow_samples_nothing_is_said() -> None:
    steps = run().steps
    for facts in ({}, fact(steps=()), {"slow_samples": None}):
        assert slow_samples(facts, ENVIRONMENT, steps) is None


def test_samples_that_cost_little_are_listed_without_a_sentence() -> None:
    samples = slow_samples(fact(seconds=0.005), ENVIRONMENT, run(seconds=0.005).steps)
    assert samples is not None
    assert samples.saved_frac < 0.02
    assert samples.sentence == ""


@pytest.mark.parametrize(
    ("facts", "watched"),
    [
        ({"loaders": [{}, {}]}, {}),
        ({"iterators_at_once": True}, {}),
        ({}, {"in_order": False}),
        ({}, {"num_workers": 0}),
    ],
)
def test_where_the_queue_is_not_known_no_gain_is_told(
    facts: dict[str, Any], watched: dict[str, Any]
) -> None:
    samples = found({**fact(), **facts}, **watched)
    assert math.isnan(samples.saved_frac)
    assert samples.sentence == ""


def test_they_are_a_signature_where_they_cost_much() -> None:
    steps = run().steps

    def signatures(facts: dict[str, Any]) -> dict[str, Any]:
        trace = Trace(steps, made_telemetry(), own_config("mine"), facts)
        return {s.name: s for s in find_signatures(trace)}

    seen = signatures({**fact(), "watched": WATCHED})["slow-samples"]
    assert seen.cost_frac == pytest.approx(0.83, abs=0.01)
    assert seen.evidence["index"] == 1020
    assert "slow-samples" not in signatures({"watched": WATCHED})


def periodic(seconds: float = 0.02, every: int = 16, busy: int = 0) -> dict[str, Any]:
    """Returns the facts of a run in which every 16th sample is slow, one of each batch, and others a little."""
    n_slow = 3200 // every
    told = fact(tuple(range(MOST_REMOVED)), seconds)["slow_samples"]
    indices = [5 + every * at for at in range(n_slow)]
    others = list(range(1, 2 * busy, 2))
    return {
        "slow_samples": {
            **told,
            "indices": indices + others,
            "indices_times": [1] * (n_slow + busy),
            "indices_longest_s": [seconds] * n_slow + [5 * MEDIAN_S] * busy,
            "sketch": [
                [MEDIAN_S, 3200 - n_slow - busy],
                [5 * MEDIAN_S, busy],
                [seconds, n_slow],
            ],
        }
    }


def slow_in_each_batch(seconds: float = 0.02) -> Any:
    of = run_of(np.full(N, USUAL_S - MEDIAN_S + seconds), np.full(N, 0.004), 2)
    of.steps["samples"] = np.full(N, 16.0)
    return of


@pytest.mark.parametrize("busy", [0, 150])
def test_every_kth_is_said_with_the_gain_without_all_of_them(busy: int) -> None:
    steps = slow_in_each_batch().steps
    samples = slow_samples(periodic(busy=busy), ENVIRONMENT, steps)
    assert samples is not None
    assert samples.period is not None
    assert (samples.period.every, samples.period.first, samples.period.n) == (16, 5, 200)
    true_frac = 1 - trained_s(slow_in_each_batch(MEDIAN_S)) / trained_s(slow_in_each_batch())
    assert samples.period_saved_frac == pytest.approx(true_frac, abs=0.03)
    assert samples.costs_frac == samples.period_saved_frac
    assert samples.sentence.startswith(
        "Every 16th sample (5, 21, 37 and so on) takes about 20.0 ms, 20 times the median. Without all of them about "
    )


def test_a_run_of_an_earlier_version_has_no_period() -> None:
    samples = slow_samples(fact(), ENVIRONMENT, run().steps)
    assert samples is not None
    assert samples.period is None
    assert samples.period_words == ""


def traced(steps: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Returns what is found in a watched run."""
    trace = Trace(steps, made_telemetry(), own_config("mine"), {"watched": WATCHED, **facts})
    return {s.name: s for s in find_signatures(trace)}


def test_a_period_is_a_part_of_the_signature() -> None:
    seen = traced(slow_in_each_batch().steps, periodic())["slow-samples"]
    assert (seen.evidence["period"], seen.evidence["period_first"]) == (16, 5)
    assert seen.cost_frac > 0.3


def test_every_kth_batch_is_a_signature_where_it_is_not_the_samples() -> None:
    made_s = np.full(N, USUAL_S)
    made_s[3::10] += 0.3
    slow = run_of(made_s, np.full(N, 0.01), 2)
    usual = run_of(np.full(N, USUAL_S), np.full(N, 0.01), 2)
    seen = traced(slow.steps, {})
    assert seen["periodic-batches"].sentence.startswith(
        "Every 10th batch of an epoch (number 3, 13, 23 and so on) takes 316 ms to make, the median 16.0 ms. Without "
    )
    true_frac = 1 - trained_s(usual) / trained_s(slow)
    assert seen["periodic-batches"].cost_frac == pytest.approx(true_frac, abs=0.02)
    assert "slow-worker" not in seen, "they are all of one worker, and it is not slow"
    assert "periodic-batches" not in traced(slow.steps, periodic())


def test_a_slow_worker_has_the_gain_of_a_replay() -> None:
    made_s = np.full(N, USUAL_S)
    made_s[1::2] *= 2.1
    seen = traced(run_of(made_s, np.full(N, 0.005), 2).steps, {})
    slow = run_of(made_s, np.full(N, 0.005), 2)
    usual = run_of(np.full(N, USUAL_S), np.full(N, 0.005), 2)
    assert seen["slow-worker"].evidence["times_slower"] == pytest.approx(2.1)
    true_frac = 1 - trained_s(usual) / trained_s(slow)
    assert seen["slow-worker"].cost_frac == pytest.approx(true_frac, abs=0.02)
    assert "With all as fast about" in seen["slow-worker"].sentence
    assert not {"worker-period", "periodic-batches"} & set(seen)
