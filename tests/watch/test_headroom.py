"""Headroom in a script's own loop: which steps have kept batches, and what comes of them."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from tests.watch import scripts
from tests.watch.watching import Host
from vitprof.analysis.verdict.headroom import own_headroom
from vitprof.watch.core.loop import Step
from vitprof.watch.core.replay_blocks import ReplayBlocks, asks_several
from vitprof.watch.core.timeline import Fetch
from vitprof.watch.events import Description
from vitprof.watch.patches import replay as headroom_module
from vitprof.watch.patches.replay import (
    BLOCK_S,
    BLOCK_STEPS,
    MOST_BLOCKS,
    MOST_KEPT,
    SETTLE_STEPS,
    KeptBatches,
    KeptCopies,
    ReplayPlan,
)

EPOCHS = 10


@pytest.mark.measured
def test_each_block_is_what_the_scripts_own_clock_says(host: Host) -> None:
    told = host.ok("by_own_clock", epochs=EPOCHS, env={"VITPROF_WATCH_HEADROOM": "1"})
    own = json.loads(told.returned)
    n_new = EPOCHS * scripts.N_SAMPLES // scripts.BATCH
    assert sum(not again for again, _ in own) == n_new
    assert told.steps["step"].tolist() == list(range(n_new)), (
        "steps on kept batches are no steps of the run"
    )
    runs = [
        [seconds for _, seconds in run]
        for _, run in itertools.groupby(own, key=lambda step: step[0])
    ]
    blocks = told.facts()["replay"]
    assert len(blocks) == len(runs) - 1 >= 8
    off = []
    for block, run in zip(blocks.values(), runs, strict=False):
        assert (
            len(run) > block["steps"] >= BLOCK_STEPS - 3
        )  # the first block is begun by the warm-up
        off.append(abs(block["step_s"] / sum(run[-block["steps"] :]) - 1))
    assert np.median(off) < 0.05, "of one that was held up between two clocks it is more"
    found: Any = own_headroom(told.facts())
    assert found.speed_up.low > 1.5, "a wait of 15 ms before 4 ms of work"
    assert (
        len([phase for phase in told.note("phase") if phase["name"] == "headroom"]) == found.n_pairs
    )


def test_a_script_that_changes_its_batches_gets_no_kept_ones(host: Host) -> None:
    told = host.ok("by_own_clock", epochs=4, in_place=True, env={"VITPROF_WATCH_HEADROOM": "1"})
    assert "in place" in told.facts()["replay_refused"]
    assert told.steps["step"].tolist() == list(range(4 * scripts.N_SAMPLES // scripts.BATCH))


class Played:
    """Steps on a played clock, in the script's process and as the core knows them."""

    def __init__(self, *, queued: int = 0, n_kept: int = 3) -> None:
        self.now_s = 0.0
        self.headroom = ReplayPlan()
        self.headroom.begin(LOADER.number, {"num_workers": queued, "prefetch_factor": 1})
        for i in range(n_kept):
            self.headroom.keep({"x": torch.full((2, 2), float(i)), "name": "x"})
        self.blocks = ReplayBlocks()
        self.phases: list[dict[str, Any]] = []
        self.numbers: list[float] = []
        """Of the steps of the run."""

    def step(self, seconds: float, *, kept_seconds: float) -> tuple[bool, bool]:
        """Returns whether it has a kept batch, and whether it is left out of its block."""
        assert self.headroom.is_of(LOADER)
        settles = self.headroom.request(self.now_s)
        is_kept = self.headroom.batch() is not None
        took_s = kept_seconds if is_kept else seconds
        fetch = fetched(block=self.headroom.block, is_settling=settles)
        begun_s = self.now_s
        self.now_s += took_s
        figures = {
            "step": float(len(self.numbers)),
            "warmup": 0.0,
            "t_start_s": begun_s,
            "step_s": took_s,
            "data_wait_s": took_s / 2,
            "compute_s": 0.0,
        }
        columns = {name: np.array([figure]) for name, figure in figures.items()}
        step = Step(epoch=0, fetches=[fetch], end_s=self.now_s)
        own, phases = self.blocks.add([step], columns)
        assert len(own["step"]) == (not is_kept)
        assert own["warmup"].tolist() == [float(settles)] * (not is_kept)
        self.numbers += own["step"].tolist()
        self.phases += [phase.values for phase in phases]
        return is_kept, settles

    def facts(self) -> dict[str, Any]:
        return self.blocks.facts(self.headroom.refused)


LOADER = Description(7, "loader", {"num_workers": 0})


def fetched(*, loader: int = 7, block: int = 0, is_settling: bool = False) -> Fetch:
    """A batch whose times do not matter."""
    return Fetch(loader, 1, 0.0, 0.0, 0.0, True, False, block=block, is_settling=is_settling)


def test_blocks_take_turns_and_what_they_begin_with_is_left_out() -> None:
    played = Played(queued=4)
    steps = [played.step(0.1, kept_seconds=0.05) for _ in range(130)]
    new = SETTLE_STEPS + 4 + BLOCK_STEPS
    kept = SETTLE_STEPS + BLOCK_STEPS
    are_kept = [is_kept for is_kept, _ in steps]
    assert are_kept[: new + kept + 1] == [False] * new + [True] * kept + [False]
    settle = [settles for _, settles in steps]
    assert settle[:new] == [True] * (SETTLE_STEPS + 4) + [False] * BLOCK_STEPS
    blocks = played.facts()["replay"]
    assert list(blocks) == [str(n) for n in range(len(blocks))]
    assert all(block["steps"] == BLOCK_STEPS for block in blocks.values())
    found: Any = own_headroom({"replay": blocks})
    assert found.speed_up == pytest.approx((2.0, 2.0, 2.0))
    assert played.numbers == list(range(are_kept.count(False)))
    assert len(played.phases) == found.n_pairs
    for phase in played.phases:
        assert phase["name"] == "headroom"
        assert phase["t_end_s"] - phase["t_start_s"] == pytest.approx(kept * 0.05)


def test_a_block_of_short_steps_lasts_long_enough() -> None:
    played = Played()
    steps = [played.step(0.004, kept_seconds=0.004)[0] for _ in range(60)]
    assert steps.index(True) == pytest.approx(SETTLE_STEPS + BLOCK_S / 0.004, abs=2)


def test_all_batches_are_new_until_the_core_says_which_loader_trains() -> None:
    headroom = ReplayPlan()
    assert not headroom.is_of(LOADER)
    headroom.begin(LOADER.number, LOADER.facts)
    assert headroom.is_of(LOADER)
    assert not headroom.is_of(Description(8, "loader", {"num_workers": 1}))
    made_anew = Description(9, "loader", dict(LOADER.facts))
    assert headroom.is_of(made_anew), "as with a loader for each epoch"


def test_kept_batches_are_copies_in_turn() -> None:
    kept = KeptBatches()
    for i in range(MOST_KEPT + 2):
        tensor = torch.full((1,), float(i))
        kept.keep((tensor, [tensor]))
        tensor.zero_()
    batches = [kept.next() for _ in range(MOST_KEPT + 1)]
    assert [batch[0].item() for batch in batches] == [*range(MOST_KEPT), 0]
    assert isinstance(batches[0], tuple)
    assert isinstance(batches[0][1], list)


def test_a_batch_that_the_script_has_changed_is_not_served_again() -> None:
    kept = KeptBatches()
    kept.keep(torch.zeros(2))
    first = kept.next()
    assert kept.next() is first
    first.add_(1.0)
    assert kept.next() is None


def test_it_ends_after_many_blocks() -> None:
    played = Played()
    n = SETTLE_STEPS + BLOCK_STEPS
    steps = [played.step(1.0, kept_seconds=1.0)[0] for _ in range((MOST_BLOCKS + 5) * n)]
    assert len(played.facts()["replay"]) == MOST_BLOCKS
    assert not any(steps[-4 * n :])
    assert played.facts()["replay_refused"] is None


def test_what_is_too_large_is_not_kept_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom_module, "MOST_OF_MEMORY", 0.0)
    played = Played()
    assert not any(played.step(0.1, kept_seconds=0.1)[0] for _ in range(50))
    assert "too large" in played.facts()["replay_refused"]


def test_copies_on_a_device_take_at_most_a_tenth_of_its_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headroom_module, "_free_bytes", lambda device: 1000.0)
    copies = KeptCopies()
    batches = [torch.zeros(10) for _ in range(4)]  # of 40 bytes each
    copies.watch(batches)

    def is_kept(batch: torch.Tensor) -> bool:
        copies.add(batch, ("meta",), {}, batch.to("meta"))
        return copies.copy_of(batch, ("meta",), {}) is not None

    assert [is_kept(batch) for batch in batches] == [True, True, False, False]
    assert is_kept(batches[0]), "copied again, in place of the earlier one"
    copies.clear()
    copies.watch(batches)
    assert is_kept(batches[3])


def test_a_step_of_several_loaders_is_found() -> None:
    both = Step(epoch=0, fetches=[fetched(loader=7), fetched(loader=8)])
    ended = fetched(loader=8)
    ended.exhausted = True
    assert asks_several([both])
    assert not asks_several([Step(epoch=0, fetches=[fetched(loader=7), ended]), Step(epoch=0)])
