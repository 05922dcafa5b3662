"""What steps on new and on kept batches took, in blocks, at times that nobody measured."""

import numpy as np
import pytest

from tests.watch.core.written import MAIN, TRAIN, Script
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.loop import Step, find_steps
from vitprof.watch.core.replay_blocks import ReplayBlocks
from vitprof.watch.core.training import find_training
from vitprof.watch.events import Kind


class InBlocks(Script):
    """A script whose requests for batches are numbered by blocks."""

    block = 0.0
    settles = 0.0

    def _add(self, kind: Kind, thread: int, number: int, *values: float) -> None:
        super()._add(kind, thread, number, *values)
        if kind is Kind.REQUESTED:
            super()._add(Kind.BLOCK, MAIN, number, self.block, self.settles)


def steps_of(script: Script) -> list[Step]:
    training = find_training(script.log)
    assert training is not None
    return find_steps(training).steps


def replay(blocks: ReplayBlocks) -> dict[str, dict[str, float]]:
    return {number: dict(sums) for number, sums in blocks.facts("")["replay"].items()}


def test_a_step_whose_device_times_are_not_known_counts_in_no_block() -> None:
    """The first one on a device: it is not known to train before the first loss."""
    script = InBlocks()
    script.train(4)
    script.block = 1.0
    script.train(2)
    steps = steps_of(script)
    columns = columns_of(steps)
    columns["step_s"][0] = np.nan
    columns["warmup"][:] = 0.0
    columns["warmup"][1] = 1.0
    blocks = ReplayBlocks()
    own, _ = blocks.add(steps, columns)
    assert replay(blocks)["0"]["steps"] == 2
    assert replay(blocks)["0"]["step_s"] == pytest.approx(2 * 0.012)
    assert len(own["step"]) == 4


def test_a_step_is_in_the_block_of_its_batch_where_an_epoch_has_ended_before_it() -> None:
    script = InBlocks()
    script.train(7)
    script.exhaust(TRAIN)
    script.block = 1.0
    script.settles = 1.0
    script.train(1)
    script.settles = 0.0
    script.train(2)
    script.block = 2.0
    script.train(1)
    blocks = ReplayBlocks()
    steps = steps_of(script)
    own, phases = blocks.add(steps, columns_of(steps))
    assert [replay(blocks)[number]["steps"] for number in "01"] == [2, 2]
    assert own["step"].tolist() == list(range(8))
    assert len(phases) == 1
