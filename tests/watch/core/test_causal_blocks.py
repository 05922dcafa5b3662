"""Where a causal profile cannot be measured, and what is told of its blocks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.watch.core.test_headroom_blocks import InBlocks, steps_of
from vitprof.watch.core import causal_blocks
from vitprof.watch.core.causal_blocks import KIND, TOLD_EVERY, CausalBlocks, why_refused
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Fetch
from vitprof.watch.events import Description

LOADER = {"num_workers": 2, "prefetch_factor": 2}


def fetched(loader: int) -> Fetch:
    return Fetch(loader, 1, 0.0, 0.0, 0.0, True, False)


@pytest.mark.parametrize(
    ("process", "device", "loader", "why"),
    [
        ({}, "cpu", {}, ""),
        ({"world_size": 1}, "cpu", {"in_order": True}, ""),
        ({"world_size": 2}, "cpu", {}, causal_blocks.RANKS),
        ({}, "cuda:0", {}, causal_blocks.GPU),
        ({}, "cpu", {"in_order": False}, causal_blocks.OUT_OF_ORDER),
        ({}, "cpu", {"timeout_s": 30}, causal_blocks.TIMEOUT),
        ({}, "cpu", {"num_workers": 200}, causal_blocks.TOO_MANY),
    ],
)
def test_what_cannot_be_told_is_refused(
    process: dict[str, Any], device: str, loader: dict[str, Any], why: str
) -> None:
    step = Step(epoch=0, fetches=[fetched(7)])
    assert why_refused([step], process, device, {**LOADER, **loader}) == why


def test_several_loaders_and_those_of_other_libraries_are_refused() -> None:
    both = Step(epoch=0, fetches=[fetched(7), fetched(8)])
    assert why_refused([both], {}, "cpu", LOADER) == causal_blocks.SEVERAL_LOADERS
    one = Step(epoch=0, fetches=[fetched(7)])
    assert why_refused([one], {}, "cpu", {"num_workers": 0}) == causal_blocks.NOT_PYTORCH


def block(n: int) -> Description:
    return Description(n, KIND, {"block": {"round": n}})


def test_blocks_are_told_some_at_a_time_and_all_at_the_end() -> None:
    blocks = CausalBlocks()
    described = [block(n) for n in range(TOLD_EVERY - 1)]
    assert blocks.facts(described, finished=False)["causal"]["blocks"] == []
    described.append(block(TOLD_EVERY))
    assert len(blocks.facts(described, finished=False)["causal"]["blocks"]) == TOLD_EVERY
    described.append(block(TOLD_EVERY + 1))
    assert len(blocks.facts(described, finished=False)["causal"]["blocks"]) == TOLD_EVERY
    assert len(blocks.facts(described, finished=True)["causal"]["blocks"]) == TOLD_EVERY + 1


def test_why_there_are_none_is_told_whoever_says_it() -> None:
    blocks = CausalBlocks()
    said = [Description(1, KIND, {"refused": "too short"})]
    assert blocks.facts(said, finished=False)["causal"]["refused"] == "too short"
    assert blocks.answer(7, LOADER, "a GPU") == {"causal": 0, "refused": "a GPU"}
    assert blocks.facts([], finished=False)["causal"]["refused"] == "a GPU"
    assert CausalBlocks().answer(7, LOADER, "") == {"causal": 7, "facts": LOADER}


def test_steps_beside_pauses_are_no_part_of_the_run() -> None:
    script = InBlocks()
    script.train(6)
    script.block = 3.0
    script.train(4)
    script.block = 4.0
    script.train(3)
    steps = steps_of(script)
    own, phases = CausalBlocks().apart.add(steps, columns_of(steps))
    assert len(own["step"]) == len(steps) - 4
    assert [phase.values["name"] for phase in phases] == [KIND]
