"""Headroom from anchors: sums, intervals, and what is said where it cannot be told."""

import json
import math
from typing import Any

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.verdict import headroom as module
from vitprof.recording import codec


def made(role: str, ms: float, spread: float = 0.01) -> module.Anchor:
    s = ms / 1e3
    return module.Anchor(role, s, s * (1 - spread), s * (1 + spread), 2, 120)


FOUR = [made("A", 4), made("B", 5), made("C", 10), made("D", 16)]


class TestAnchor:
    def test_steady_steps_pooled(self) -> None:
        runs = [
            made_steps([w] * 30, [0.08] * 30, warmup=5) for w in (0.02, 0.04)
        ]  # 10 samples a step
        found = module.anchor("C", runs)
        assert (found.n_runs, found.n_steps, found.s_per_sample) == (2, 50, pytest.approx(0.011))
        # each repeat is exact in itself: the spread is that between them
        assert (found.low, found.high) == (pytest.approx(0.010), pytest.approx(0.012))

    def test_too_few_steps(self) -> None:
        for runs in ([], [made_steps([], [])], [made_steps([0.1], [0.1], warmup=5)]):
            found = module.anchor("A", runs)
            assert (found.n_runs, found.n_steps) == (0, 0)
            assert math.isnan(found.s_per_sample)
        found = module.anchor("A", [made_steps([0.1] * 4, [0.1] * 4, warmup=1)])
        assert (found.s_per_sample, math.isnan(found.low)) == (pytest.approx(0.02), True)
        assert not module.headroom([found, made("B", 30)]).parts[0].distinguishable


class TestHeadroom:
    def test_by_hand(self) -> None:
        found = module.headroom(FOUR)
        assert [(p.name, pytest.approx(p.s_per_sample)) for p in found.parts] == [
            ("transfer", 0.001),
            ("preparation", 0.005),
            ("storage", 0.006),
        ]
        assert [p.share for p in found.parts] == pytest.approx([1 / 16, 5 / 16, 6 / 16])
        assert all(p.distinguishable for p in found.parts)
        assert found.parts[0].low == pytest.approx(0.001 - math.hypot(0.00004, 0.00005))
        assert (found.speed_up, found.baseline_role) == (pytest.approx(2.5), "C")
        assert found.speed_up_low < found.speed_up < found.speed_up_high
        assert module.headroom(FOUR, baseline="D").speed_up == pytest.approx(4)

    def test_the_keys_that_programs_read_are_those_of_the_first_version(self) -> None:
        found = codec.to_plain(module.headroom(FOUR))
        names = "anchors parts speed_up speed_up_low speed_up_high baseline_role notes simulated pending"
        assert list(found) == names.split()
        assert [stage["name"] for stage in found["parts"]] == ["transfer", "preparation", "storage"]
        json.dumps(codec.to_plain(module.headroom([])), allow_nan=False)

    def test_an_anchor_that_is_missing(self) -> None:
        lost = module.Anchor("B", math.nan, math.nan, math.nan, 0, 0)
        found = module.headroom([FOUR[0], lost, FOUR[2]], notes=["anchor B: 2 of 2 runs failed"])
        assert [p.name for p in found.parts] == ["transfer and preparation"]
        assert (found.parts[0].s_per_sample, found.speed_up) == (
            pytest.approx(0.006),
            pytest.approx(2.5),
        )
        assert found.notes == ("anchor B: 2 of 2 runs failed",)
        assert [a.role for a in found.anchors] == ["A", "B", "C"]
        assert codec.to_plain(found)["anchors"][1]["s_per_sample"] is None

    def test_no_speed_up_without_both_ends_but_the_cold_one_stands_in_for_the_warm_one(
        self,
    ) -> None:
        for found in (module.headroom(FOUR[1:]), module.headroom(FOUR[:2])):
            assert math.isnan(found.speed_up)
            assert "not known" in module.headroom_sentence(found, 32)
        found = module.headroom([FOUR[0], FOUR[3]])
        assert (found.baseline_role, found.speed_up) == ("D", pytest.approx(4))
        assert [p.name for p in found.parts] == [" and ".join(module.ADDED_STAGE.values())]
        nothing = module.headroom([])
        assert (nothing.parts, nothing.baseline_role) == ((), "")


class TestInWords:
    def test_what_costs_most_comes_first(self) -> None:
        said = module.headroom_sentence(module.headroom(FOUR), 10)
        assert said.startswith(
            "With free data the steps of this job would run 2.50 times as fast (2.46 to 2.54): of each step's 100 ms, "
        )
        assert (
            said.index("storage costs 60.0 ms")
            < said.index("preparation costs 50.0 ms")
            < said.index("transfer")
        )
        assert "simulated" in module.headroom_sentence(module.headroom(FOUR, simulated=True), 10)

    def test_what_is_still_to_come(self) -> None:
        for anchors, role in ((FOUR[:2], "C"), (FOUR[1:], "A")):
            said = module.headroom_sentence(module.headroom(anchors, pending=[role]), 10)
            assert said.endswith(f"anchor {role} is still to come.")

    def test_what_cannot_be_told_is_not_given_a_figure(self) -> None:
        said = module.headroom_sentence(
            module.headroom([made("A", 10), made("B", 10.05), made("C", 9.9)]), 10
        )
        assert "costs" not in said
        (note,) = module.headroom([made("A", 10), made("B", 5)]).notes
        assert note.startswith("transfer: the job took 5.00 ms a sample less with it")
        assert "transfer and preparation cannot be told apart from zero" in said
        assert "at most" in said


def blocks(pairs: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Facts of pairs of blocks: ms of a step on a new batch, its data wait, ms of a step on a kept batch."""
    told = {}
    for i, (new, wait, kept) in enumerate(pairs):
        told[str(2 * i)] = {
            "steps": 10,
            "step_s": new / 100,
            "compute_s": 0.0,
            "data_wait_s": wait / 100,
        }
        told[str(2 * i + 1)] = {
            "steps": 20,
            "step_s": kept / 50,
            "compute_s": 0.0,
            "data_wait_s": 0.0,
        }
    return {"replay": told}


def test_gain_and_what_loading_slows_in_training_unless_blocks_are_few() -> None:
    found = module.own_headroom(blocks([(15, 3, 10)] * 6))
    assert (found.speed_up, found.training) == (
        pytest.approx((1.5, 1.5, 1.5)),
        pytest.approx((1.2, 1.2, 1.2)),
    )
    said = module.own_headroom_sentence(found)
    assert (
        "the steps of this loop would run 1.50x as fast (95%: 1.50x to 1.50x, 6 pairs of blocks). "
        in said
    )
    assert said.endswith(
        " training itself takes 20% longer (20% to 20%) while batches are being made."
    )
    found = module.own_headroom(blocks([(15, 3, 10)] * 3))
    assert math.isnan(found.speed_up.value)
    assert "3 pairs of blocks were measured, and 4 are needed" in module.own_headroom_sentence(
        found
    )
    refused = module.own_headroom(blocks([]) | {"replay_refused": "the script changes its batches"})
    assert refused is not None
    assert (
        "0 pairs of blocks were measured: the script changes its batches"
        in module.own_headroom_sentence(refused)
    )
    assert module.own_headroom({"n_train": 5}) is None


def test_no_gain_is_not_made_up_from_noise() -> None:
    """The interval holds the truth in most of 200 measurements without any gain, and few of them claim one."""
    random = np.random.default_rng(0)
    claims = 0
    for _ in range(200):
        noise = random.normal(1, 0.05, (12, 2))
        found = module.own_headroom(blocks([(10 * a, 0, 10 * b) for a, b in noise]))
        assert found is not None
        claims += "as fast" in module.own_headroom_sentence(found)
    assert claims <= 16
