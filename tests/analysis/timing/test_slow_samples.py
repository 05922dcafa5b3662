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
