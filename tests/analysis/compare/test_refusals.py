"""What a check refuses: runs that cannot be judged, and differences that Compare only warns of."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.analysis.compare.simulated_runs import run
from tests.analysis.compare.test_guard import made
from vitprof.analysis.compare.differences import RunFacts
from vitprof.analysis.compare.guard import ALLOWED_TOPICS, UNDER_TEST, CheckedRun, comparable, why_not_judged
from vitprof.config.own_script import own_config, with_loader
from vitprof.recording.columns import RunSummary

STEPS = run(np.random.default_rng(0), 30)


def checked(facts: RunFacts, /, **changes: Any) -> CheckedRun:
    one = CheckedRun(facts, "done", "", STEPS, (facts.source, facts.id))
    return dataclasses.replace(one, **changes)


def watched(run_id: int, *, n_samples: int = 600, mean: float = 32.0, **told: Any) -> RunFacts:
    environment = {"watched": {"dataset": "Samples", "batch_size": 32, "n_samples": n_samples} | told}
    config = with_loader(own_config("train.py"), environment)
    summary = RunSummary(n_steps=100, n_samples=round(mean * 100))
    return dataclasses.replace(made(run_id, environment=environment), config=config, summary=summary)


def refused(first: RunFacts, second: RunFacts, *allowed: str) -> tuple[str, ...]:
    return comparable([checked(first)], [checked(second)], allowed).refusals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "failed", "error": "out of memory"}, "run 1 failed (out of memory); check a run"),
        ({"status": "stopped"}, "run 1 was stopped; check a run"),
        ({"status": "running"}, "run 1 is still going on; check a run"),
        ({"steps": run(np.random.default_rng(0), 0)}, "run 1 has no steps in steady state"),
        ({"facts": made(1, facts={"n_beside": 1})}, "run 1 shared the machine with another run"),
        ({"facts": made(1)}, ""),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_run_that_says_nothing(changes: dict[str, Any], said: str) -> None:
    found = why_not_judged(checked(made(1), **changes))
    assert found.startswith(said)
    assert bool(found) == bool(said)
    if "shared" in said:
        assert why_not_judged(checked(made(1), **changes), ["sharing"]) == ""


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("data", {"dataset": "photos"}),
        ("model", {"precision": "bf16"}),
        ("batch", {"batch_size": 256}),
        ("device", {"environment": {"device_name": "NVIDIA H100"}}),
        ("machine", {"environment": {"hostname": "there"}}),
        ("vitprof", {"environment": {"vitprof": "0.5"}}),
        ("clocks", {"sm_clock_mhz": 1000.0}),
        ("cpu", {"others_cores": 2.0}),
    ],
)
def test_a_difference_is_refused_unless_it_is_allowed(topic: str, changes: dict[str, Any]) -> None:
    (said,) = refused(made(1), made(2, **changes))
    assert said.endswith(f"--allow {topic}")
    assert topic in ALLOWED_TOPICS
    assert refused(made(1), made(2, **changes), topic) == ()


@pytest.mark.parametrize(
    "changes", [{"environment": {"torch": "2.16"}}, {"loss": np.full(20, 9.0)}, {"environment": {"variables": "A=1"}}]
)
def test_what_a_change_under_test_may_be_is_only_told(changes: dict[str, Any]) -> None:
    found = comparable([checked(made(1))], [checked(made(2, **changes))])
    assert (found.refusals, len(found.remarks)) == ((), 1)
    assert not set(UNDER_TEST) & set(ALLOWED_TOPICS)


def test_what_is_compared_may_differ() -> None:
    found = comparable([checked(made(1, strategy="workers", seed=3))], [checked(made(2, strategy="memory"))])
    assert found.refusals == found.remarks == ()


def test_runs_of_one_side_are_of_one_setting() -> None:
    repeated = [checked(made(1, seed=1, steps=50)), checked(made(2, seed=2, steps=60))]
    assert comparable(repeated, []).refusals == ()
    mixed = [checked(made(n, strategy="workers", workers=n)) for n in (1, 2)]
    for found in (comparable(mixed, []), comparable([checked(made(3, strategy="memory"))], mixed)):
        (said,) = found.refusals
        assert said.startswith("Runs 1 and 2 are not of one setting (workers 1, 2)")
    assert comparable(mixed, [], ["settings"]).refusals == ()


def test_a_run_is_not_held_against_itself() -> None:
    (said,) = refused(made(1), made(1))
    assert said.startswith("run 1 is on both sides")


def test_two_files_may_have_the_same_numbers() -> None:
    """A run of a file has the number that it had where it was made."""
    (said,) = refused(made(1), made(1, source="base.vitprof", environment={"hostname": "there"}))
    assert "here in run 1; there in run 1 of base.vitprof" in said


@pytest.mark.parametrize(
    ("changes", "topic"),
    [
        ({"n_samples": 601}, "data"),
        ({"dataset": "Others"}, "data"),
        ({"batch_size": 64}, "batch"),
        ({"mean": 48.0}, "batch"),
        ({}, ""),
        ({"mean": 31.5, "num_workers": 4}, ""),
    ],
)
def test_watched_runs(changes: dict[str, Any], topic: str) -> None:
    found = refused(watched(1), watched(2, **changes))
    assert [said.rpartition(" ")[2] for said in found] == [topic] * bool(topic)
