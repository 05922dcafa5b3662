"""What one rank's training adds to a job's: sizes of batches, shared budgets, collectives of simulated devices."""

import dataclasses
import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.engine_fixtures import Recorded, ticking
from vitprof.config import RunConfig
from vitprof.engine.ranks.training import Noted, SharedBudget, SimulatedRankTrainer
from vitprof.engine.transfer import Moved
from vitprof.measure.devices import open_device
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.step_columns import UNKNOWN_TIMES, StepMarks


@dataclasses.dataclass
class Pretended:
    """A group whose other ranks are `later` by so much, and agree to end at step `last`."""

    later: float = 0.0
    last: int = 3
    rank: int = 1
    in_steps: bool = False

    def latest(self, value: float) -> float:
        return value + self.later

    def spent(self, steps: int, *, spent: bool) -> bool:
        return steps >= self.last


def a_batch() -> Moved:
    return Moved(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64), *[0.0] * 4)


def test_a_simulated_step_ends_with_that_of_the_last_rank() -> None:
    device = open_device("simulated:10,0", ticking(1e-9))
    assert isinstance(device, SimulatedDevice)
    noted, group = Mock(), Pretended(later=0.03)
    trainer = SimulatedRankTrainer(device, group, noted)  # type: ignore[arg-type]
    first = trainer.step(a_batch(), None)
    start = first.compute_start
    assert (first.loss, group.in_steps) == (None, True)
    assert device.mark() - start == pytest.approx(0.04, abs=1e-6)
    assert device._queued[-1] == device.mark(), (
        "the launch queue is as full as the device is behind"
    )
    again = trainer.step(a_batch(), None).compute_start
    assert again - start == pytest.approx(0.04, abs=1e-6)
    assert device._busy[0][0] == start
    assert sum(end - begun for begun, end in device._busy) == pytest.approx(0.08, abs=1e-6), (
        "NVML: a kernel runs"
    )


def test_seconds_end_when_all_ranks_agree_and_steps_by_their_number() -> None:
    budget = SharedBudget(0, 10.0, 0.0, group=Pretended())  # type: ignore[arg-type]
    for done, now, spent in ((1, 5.0, False), (2, 11.0, False), (3, 6.0, True)):
        budget.done = done
        assert (budget.spent_frac(now) >= 1) is spent
    budget = SharedBudget(2, math.inf, 0.0, done=2, group=Pretended())  # type: ignore[arg-type]
    assert budget.spent_frac(1.0) == 1
    assert not budget.steps_left(1.0), "no gate: the other ranks would wait for it"


def test_each_step_is_noted_with_its_own_batch_and_facts_are_those_of_the_job() -> None:
    recorded: Any = Recorded()
    noted = Noted(recorded, RunConfig(ranks=2), Pretended())  # type: ignore[arg-type]
    steps: list[StepMarks] = []
    recorded.step = steps.append
    noted.note_batch(a_batch(), 7.5)
    noted.note_batch(a_batch()._replace(images=torch.zeros(3)), math.nan)
    for made in (UNKNOWN_TIMES._replace(read_s=0.5), None):
        marks = StepMarks()
        marks.made, marks.t_got = made, 7.0
        noted.step(marks)
    first, second = (marks.made for marks in steps if marks.made is not None)
    assert (first.read_s, first.batch_values, first.forward_s) == (0.5, 16, 0.5)
    assert second.batch_values == 3
    assert math.isnan(second.forward_s)
    kept: dict[str, Any] = {}
    recorded.facts, recorded.environment = kept.update, kept.update
    noted.facts({"n_train": 101, "cpu_samples": 50, "cpu_s": 2.0})
    noted.environment({"pid": 1})
    assert kept == {
        "n_train": 50,
        "cpu_samples": 100,
        "cpu_s": 2.0,
        "pid": 1,
        "world_size": 2,
        "rank": 1,
    }
