"""One rank's training: the loop, the budget and the trainers of a job of one rank, with what makes
them one job.
"""

import math
import warnings
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from vitprof.config import RunConfig
from vitprof.engine.ranks.group import Group
from vitprof.engine.train import Budget, train
from vitprof.engine.trainer import Launched, SimulatedTrainer, TorchTrainer, Trainer
from vitprof.engine.transfer import Moved, ToInput
from vitprof.measure.devices import Device
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.step_columns import UNKNOWN_TIMES, StepMarks
from vitprof.measure.wire import Events


class Noted:
    """The events of one rank: those of a job, with the size of each step's batch and how long its
    forward pass took.
    """

    def __init__(self, events: Events, config: RunConfig, group: Group) -> None:
        self._events = events
        self._ranks = config.ranks
        self._rank = group.rank
        self._batches: deque[tuple[int, float]] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    def note_batch(self, batch: Moved, forward_end: float) -> None:
        """Notes the size of a step's batch, and when its forward pass was over (NaN where that is
        not known).
        """
        self._batches.append((batch.images.numel(), forward_end))

    def step(self, marks: StepMarks) -> None:
        values, forward_end = self._batches.popleft()
        made = marks.made or UNKNOWN_TIMES
        marks.made = made._replace(batch_values=values, forward_s=forward_end - marks.t_got)
        self._events.step(marks)

    def environment(self, facts: dict[str, Any]) -> None:
        self._events.environment(facts | {"world_size": self._ranks, "rank": self._rank})

    def facts(self, values: dict[str, Any]) -> None:
        """Takes facts; an epoch of a rank has its share of the samples, but the CPU time of rank 0
        is that of all.
        """
        n = values.get("n_train", 0)
        of_all = values.get("cpu_samples", 0)
        changes = {"n_train": n // self._ranks, "cpu_samples": of_all * self._ranks}
        self._events.facts(
            values | {name: value for name, value in changes.items() if name in values}
        )


class RankTrainer(TorchTrainer):
    """Training whose gradients are averaged over the ranks during the backward pass."""

    def __init__(self, config: RunConfig, device: Device, group: Group, noted: Noted) -> None:
        super().__init__(config, device)
        alone = self._model
        # Buffers sent at the start of each forward pass would make it wait for rank 0. Newer
        # versions of PyTorch have two settings for it, and warn about the old one.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            distributed = DistributedDataParallel(
                cast("torch.nn.Module", alone), broadcast_buffers=False
            )

        def model(images: Tensor) -> Tensor:
            # An evaluation has no gradients to average; ranks may have different numbers of
            # batches.
            if torch.is_grad_enabled():
                return cast("Tensor", distributed(images))
            return alone(images)

        self._model = model
        self._group = group
        self._noted = noted
        self._immediate = device.immediate
        self._forward_end = math.nan

    def _logits(self, batch: Moved, to_input: ToInput | None) -> Tensor:
        logits = super()._logits(batch, to_input)
        self._forward_end = perf_counter() if self._immediate else math.nan
        return logits

    def step(self, batch: Moved, to_input: ToInput | None) -> Launched:
        self._group.in_steps = True
        launched = super().step(batch, to_input)
        self._noted.note_batch(batch, self._forward_end)
        return launched

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        self._group.in_steps = False
        super().evaluate(batch, to_input)

    def evaluated(self) -> dict[str, float]:
        """Returns the results over the test set, of which each rank has seen its share."""
        n = torch.tensor(self._n, device=self._loss.device)
        for value in (n, self._loss, self._hits):
            dist.all_reduce(value)
        self._n = int(n)
        self._group.in_steps = True
        return super().evaluated()


class SimulatedRankTrainer(SimulatedTrainer):
    """Steps on a simulated device that end when the last rank's do, as if they ended in a
    collective.
    """

    def __init__(self, device: SimulatedDevice, group: Group, noted: Noted) -> None:
        super().__init__(device)
        self._group = group
        self._noted = noted

    def step(self, batch: Moved, to_input: ToInput | None) -> Launched:
        self._group.in_steps = True
        launched = super().step(batch, to_input)
        self._device.hold(self._group.latest(self._device.current.free_s))
        self._noted.note_batch(batch, math.nan)
        return launched

    def evaluated(self) -> dict[str, float]:
        facts = super().evaluated()
        self._group.latest(0.0)
        return facts


@dataclass
class SharedBudget(Budget):
    """The length of a job that ends after the same step on all ranks."""

    group: Group = field(kw_only=True)

    def steps_left(self, now: float) -> float:
        """Returns 0: no step is launched behind a gate, for which the other ranks would wait."""
        return 0.0

    def spent_frac(self, now: float) -> float:
        frac = super().spent_frac(now)
        spent = self.group.spent(self.done, spent=not self.steps and frac >= 1)
        if self.steps:
            return frac
        # All ranks end when the agreement says so, whatever their own time.
        if spent:
            return max(frac, 1.0)
        return min(frac, math.nextafter(1.0, 0.0))


def train_rank(config: RunConfig, events: Events, group: Group) -> bool:
    """Trains one rank, as `engine.train.train` does a job."""
    if group.rank:
        group.wait_for_first()
    noted = Noted(events, config, group)

    def trainer(config: RunConfig, device: Device) -> Trainer:
        if not group.rank:
            group.let_others_open()
        if isinstance(device, SimulatedDevice):
            group.latest(0.0)
            return SimulatedRankTrainer(device, group, noted)
        return RankTrainer(config, device, group, noted)

    budgets = partial(SharedBudget, group=group)
    return train(config, cast("Events", noted), group.stop, trains=trainer, budgets=budgets)
