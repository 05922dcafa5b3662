"""Headroom of a user's own script, from blocks whose times are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vitprof.analysis.verdict.headroom import measured_headroom, own_headroom, own_headroom_sentence


def blocks(pairs: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Facts of pairs of blocks: ms of a step on a new batch, its data wait, ms of a step on a kept batch."""
    told = {}
    for i, (new, wait, kept) in enumerate(pairs):
        told[str(2 * i)] = {"steps": 10, "step_s": new / 100, "compute_s": 0.0, "data_wait_s": wait / 100}
        told[str(2 * i + 1)] = {"steps": 20, "step_s": kept / 50, "compute_s": 0.0, "data_wait_s": 0.0}
    return {"replay": told}


def test_gain_and_what_loading_slows_in_training() -> None:
    found = own_headroom(blocks([(15, 3, 10)] * 6))
    assert found is not None
    assert found.speed_up == pytest.approx((1.5, 1.5, 1.5))
    assert found.training == pytest.approx((1.2, 1.2, 1.2))
    assert own_headroom_sentence(found) == (
        "Headroom: with free data this loop would run 1.50x as fast (95%: 1.50x to 1.50x, 6 pairs of blocks). Of that, "
        "training itself takes 20% longer (20% to 20%) while batches are being made."
    )


@pytest.mark.slow
def test_no_gain_is_not_made_up_from_noise() -> None:
    """The interval holds the truth in most of 200 measurements without any gain, and few of them claim one."""
    random = np.random.default_rng(0)
    claims = 0
    for _ in range(200):
        noise = random.normal(1, 0.05, (12, 2))
        found = own_headroom(blocks([(10 * a, 0, 10 * b) for a, b in noise]))
        assert found is not None
        claims += "as fast" in own_headroom_sentence(found)
    assert claims <= 16


def test_few_blocks_are_undecided_and_the_reason_is_said() -> None:
    found = own_headroom(blocks([(15, 3, 10)] * 3))
    assert found is not None
    assert math.isnan(found.speed_up.value)
    assert "3 pairs of blocks were measured, of which 4 are needed" in own_headroom_sentence(found)
    refused = own_headroom(blocks([]) | {"replay_refused": "the script changes its batches"})
    assert refused is not None
    assert "0 pairs of blocks were measured: the script changes its batches" in own_headroom_sentence(refused)


def test_a_run_without_it_has_none() -> None:
    assert own_headroom({"n_train": 5}) is None


def test_the_verdict_says_what_was_measured() -> None:
    assert measured_headroom(blocks([(15, 3, 10)] * 3)) is None
    assert measured_headroom(blocks([(15, 3, 10)] * 4)) == pytest.approx((1.5, 1.5, 1.5))
