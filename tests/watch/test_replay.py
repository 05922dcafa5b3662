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
from vitprof.watch import replay
from vitprof.watch.replay import BLOCK_S, BLOCK_STEPS, MOST_BLOCKS, MOST_KEPT, SETTLE_STEPS, Replay

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
    """Steps on a played clock."""

    def __init__(self, patch: pytest.MonkeyPatch, *, queued: int, n_kept: int = 3) -> None:
        self.now = 0.0
        patch.setattr(replay, "perf_counter", lambda: self.now)
        self.replay = Replay(queued)
        for i in range(n_kept):
            self.replay.keep({"x": torch.full((2, 2), float(i)), "name": "x"})
        self.n = 0

    def step(self, seconds: float, *, kept_seconds: float) -> tuple[bool, bool]:
        kept = self.replay.batch() is not None
        took = kept_seconds if kept else seconds
        self.now += took
        number, left_out = self.replay.step(self.n)
        assert (number < 0) == kept
        self.n += not kept
        figures = {
            "step": number,
            "warmup": left_out,
            "step_s": took,
            "data_wait_s": took / 2,
            "compute_s": 0.0,
        }
        steps = self.replay.add(
            {name: np.array([float(figure)]) for name, figure in figures.items()}
        )
        assert len(steps["step_s"]) == (not kept)
        return kept, left_out

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.replay.send(found.update)
        return found


def test_blocks_take_turns_and_what_they_begin_with_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, queued=4)
    steps = [played.step(0.1, kept_seconds=0.05) for _ in range(130)]
    new, kept = SETTLE_STEPS + 4 + BLOCK_STEPS, SETTLE_STEPS + BLOCK_STEPS
    assert [is_kept for is_kept, _ in steps[: new + kept + 1]] == [False] * new + [True] * kept + [
        False
    ]
    assert [left_out for _, left_out in steps[:new]] == [True] * (SETTLE_STEPS + 4) + [
        False
    ] * BLOCK_STEPS
    blocks = played.told()["replay"]
    assert list(blocks) == [str(n) for n in range(len(blocks))]
    assert all(block["steps"] == BLOCK_STEPS for block in blocks.values())
    found: Any = own_headroom({"replay": blocks})
    assert found.speed_up == pytest.approx((2.0, 2.0, 2.0))


def test_a_block_of_short_steps_lasts_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, queued=0)
    steps = [played.step(0.004, kept_seconds=0.004)[0] for _ in range(60)]
    assert steps.index(True) == pytest.approx(SETTLE_STEPS + BLOCK_S / 0.004, abs=2)


def test_kept_batches_are_copies_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, queued=0, n_kept=0)
    given = [torch.full((1,), float(i)) for i in range(MOST_KEPT + 2)]
    for tensor in given:
        played.replay.keep((tensor, [tensor]))
        tensor.zero_()
    while not played.replay.replaying:
        played.step(0.1, kept_seconds=0.1)
    batches = [played.replay.batch() for _ in range(MOST_KEPT + 1)]
    assert [batch[0].item() for batch in batches] == [*range(MOST_KEPT), 0]
    assert isinstance(batches[0], tuple)
    assert isinstance(batches[0][1], list)


def test_it_ends_after_many_blocks_and_what_is_too_large_is_not_kept_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, queued=0)
    steps = [
        played.step(1.0, kept_seconds=1.0)[0]
        for _ in range((MOST_BLOCKS + 5) * (SETTLE_STEPS + BLOCK_STEPS))
    ]
    assert len(played.told()["replay"]) == MOST_BLOCKS
    assert not any(steps[-4 * (SETTLE_STEPS + BLOCK_STEPS) :])
    assert played.told()["replay_refused"] is None
    monkeypatch.setattr(replay, "MOST_OF_MEMORY", 0.0)
    played = Played(monkeypatch, queued=0)
    assert not any(played.step(0.1, kept_seconds=0.1)[0] for _ in range(50))
    assert "too large" in played.told()["replay_refused"]
