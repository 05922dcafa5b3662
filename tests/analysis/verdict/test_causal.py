"""What is said of stages that seemed faster, and when nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from vitprof.analysis.verdict.causal import CausalProfile, causal_profile

STEP_S = 0.1
STEPS = 20
ENVIRONMENT = {"job_cpu_count": 8, "torch_threads": 1, "watched": {"num_workers": 1}}
TOOK = {"read": 0.06, "transform": 0.03, "collate": 0.001, "compute": 0.08}
"""Seconds in a step."""
TRIED = ["read", "transform", "compute"]
GAINS = {"read": 0.14, "transform": 0.0, "compute": 0.0}
"""What a stage that is a quarter faster saves."""


def causal(
    rounds: int = 12, gains: Mapping[str, float] = GAINS, noise: float = 0.01, **more: Any
) -> dict[str, Any]:
    random = np.random.default_rng(0)
    blocks = []

    def add(number: int, stage: str, fraction: float, saved: float) -> None:
        effective_s = STEPS * STEP_S * (1 - saved) * random.normal(1, noise)
        stage_s = STEPS * TOOK.get(stage, 0.0)
        blocks.append(
            {
                "round": number,
                "stage": stage,
                "fraction": fraction,
                "steps": STEPS,
                "wall_s": effective_s + fraction * stage_s,
                "effective_s": effective_s,
                "saved_s": fraction * stage_s,
                "stage_s": stage_s,
            }
        )

    for number in range(1, rounds + 1):
        for stage in TRIED:
            add(number, stage, 0.25, gains[stage])
            add(number, stage, 0.5, 2 * gains[stage])
        for _ in range(2):
            add(number, "", 0.0, 0.0)
    look = {
        "steps": STEPS,
        "wall_s": STEPS * STEP_S,
        "stage_s": {stage: STEPS * took_s for stage, took_s in TOOK.items()},
        "tried": TRIED,
        "blocks_per_round": 8,
        "settle": 5,
        "needed": 20,
    }
    return {"causal": {"look": look, "blocks": blocks, "refused": None, **more}}


def found(facts: Mapping[str, Any], **environment: Any) -> CausalProfile:
    profile = causal_profile(facts, ENVIRONMENT | environment)
    assert profile is not None
    return profile


def test_each_stage_is_told_with_what_it_saves() -> None:
    profile = found(causal(noise=0.0))
    assert not profile.why_unknown
    assert list(profile.sentences) == [
        "Reading 25% faster: steps 14% shorter (14% to 14%); twice as fast: 28% (28% to 28%).",
        "Transforms 25% faster: nothing, they hide behind the rest.",
        "Collate: nothing, with 1.0% of a step's time.",
        "Compute 25% faster: nothing.",
    ]


def test_without_noise_the_figures_are_those_of_the_blocks() -> None:
    (reading, *_) = found(causal(noise=0.0)).stages
    assert reading.quarter == pytest.approx((0.14, 0.14, 0.14))
    assert reading.half == pytest.approx((0.28, 0.28, 0.28))
    assert reading.took_frac == pytest.approx(0.6)


def test_noise_claims_nothing_and_says_how_many_steps_more() -> None:
    profile = found(causal(rounds=5, noise=0.2, gains=dict.fromkeys(TRIED, 0.02)))
    undecided = [gain for gain in profile.stages if gain.outcome == "undecided"]
    assert undecided
    for gain in undecided:
        assert gain.more_steps > 100
        assert "undecided" in gain.sentence
        assert " steps more would tell." in gain.sentence


def test_few_rounds_say_nothing_but_how_many_are_needed() -> None:
    profile = found(causal(rounds=2))
    (reading, *_) = profile.stages
    assert reading.outcome == "undecided"
    assert reading.sentence == "Reading 25% faster: undecided; about 400 steps more are needed."
    assert found(causal(rounds=0)).stages[0].more_steps == 800


def test_a_round_that_has_not_ended_is_left_out() -> None:
    facts = causal()
    blocks = facts["causal"]["blocks"]
    whole = found(facts).stages[0].quarter
    facts["causal"]["blocks"] = [*blocks, {**blocks[0], "round": 13, "effective_s": 99.0}]
    assert found(facts).stages[0].quarter == whole
    assert found(facts).n_rounds == 12
    facts["causal"]["blocks"] = blocks[:5]
    assert found(facts).n_rounds == 0, "nor is the first one a whole round"


@pytest.mark.parametrize(
    ("facts", "environment", "why"),
    [
        (causal(refused="ranks wait for each other"), {}, "ranks wait for each other"),
        (causal(look=None), {}, "no block of steps has ended"),
        (causal() | {"partly_watched": "it ended"}, {}, "watched in part"),
        (causal() | {"unknown_wait_steps": 3}, {}, "what the loop that trains waits for"),
        (causal() | {"loaders": [{}]}, {}, "several iterations"),
        (causal(), {"job_cpu_count": 1}, "2 threads that load and train share 1 core"),
        (
            causal() | {"making": {"queued_s": 1.0, "made_s": 10.0}},
            {},
            "batches waited for a core for 10% of the time",
        ),
    ],
)
def test_what_cannot_be_told_is_said(
    facts: dict[str, Any], environment: dict[str, Any], why: str
) -> None:
    profile = found(facts, **environment)
    (sentence,) = profile.sentences
    assert sentence.startswith("The causal profile is undecided: ")
    assert why in sentence


def test_threads_that_never_waited_for_a_core_shared_none() -> None:
    facts = causal() | {"making": {"queued_s": 0.01, "made_s": 10.0}}
    assert not found(facts, job_cpu_count=1).why_unknown


def test_pauses_that_were_not_made_are_noticed() -> None:
    facts = causal()
    for block in facts["causal"]["blocks"]:
        if block["stage"] == "read":
            block["saved_s"] /= 2  # one worker of two took no part
    assert found(facts).why_unknown == "not all processes took part when reading seemed faster"


def test_savings_that_cannot_be_are_not_claimed() -> None:
    too_much = found(causal(gains={"read": 0.2, "transform": 0.2, "compute": 0.2}))
    assert "more than there is to save" in too_much.why_unknown
    slower = found(causal(gains={**GAINS, "compute": -0.1}))
    assert slower.why_unknown == "steps were longer where compute seemed faster"


def test_a_run_without_one_has_none() -> None:
    assert causal_profile({"n_train": 5}, {}) is None


def test_of_100_runs_without_a_gain_few_claim_one() -> None:
    claims = 0
    random = np.random.default_rng(1)
    for _ in range(100):
        facts = causal(gains=dict.fromkeys(TRIED, 0.0))
        for block in facts["causal"]["blocks"]:
            block["effective_s"] *= random.normal(1, 0.05)
        claims += sum(gain.outcome == "saves" for gain in found(facts).stages)
    assert claims <= 0.04 * 300


def test_workers_that_say_nothing_did_not_pause_so_nothing_is_claimed_of_compute() -> None:
    facts = causal()
    for stage in ("read", "transform", "collate"):
        facts["causal"]["look"]["stage_s"][stage] = 0.0
    found = causal_profile(facts, ENVIRONMENT)
    assert found is not None
    assert found.sentences == (
        "The causal profile is undecided: its workers do not say what they do, so they did not pause "
        "either.",
    )
    alone = causal_profile(facts, ENVIRONMENT | {"watched": {"num_workers": 0}})
    assert alone is not None
    assert not alone.why_unknown
