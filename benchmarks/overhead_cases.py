"""The jobs that the overhead benchmark runs, and the times of their steps by the loop's own clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vitprof.config import RunConfig
from vitprof.measure.recorder import GATED_STEPS, SETTLING_STEPS


@dataclass(frozen=True)
class Case:
    """A job, as every tool runs it."""

    name: str
    title: str
    device: str
    batch_size: int
    steps: int
    """Steps in each round, without the warm-up."""
    warmup_steps: int
    strategy: str = "memory"

    @property
    def first_counted(self) -> int:
        """The first step that counts, for every tool: on a GPU after those that vitprof gates, which are no part of a
        run's figures.
        """
        return self.warmup_steps + (
            GATED_STEPS + SETTLING_STEPS if self.device.startswith("cuda") else 0
        )

    def config(self, scale: float = 1.0, **changes: Any) -> RunConfig:
        """Returns the job with `scale` times as many steps, at least two, and one more whose start ends the last one.

        The copy blocks: the device then waits for the host after each step, so that a tool's cost is not hidden.
        """
        return RunConfig(
            strategy=self.strategy,
            transfer="blocking",
            device=self.device,
            batch_size=self.batch_size,
            steps=self.first_counted + max(2, round(self.steps * scale)) + 1,
            warmup_steps=self.warmup_steps,
            evaluate=False,
            threads=1,
            **changes,
        )


STARVED = "tensordataset"
"""A strategy whose steps wait for their batch in the loop, so that all of what a tool adds to a step is seen."""

CASES: tuple[Case, ...] = (
    Case("simulated-1.5-64", "1.5 ms, simulated, batch 64", "simulated:1.5,0", 64, 400, 20),
    Case("simulated-4-1000", "4 ms, simulated, batch 1000", "simulated:4,0", 1000, 150, 20),
    Case(
        "starved-400",
        "starved: simulated 0.1 ms, DataLoader, batch 400",
        "simulated:0.1,0",
        400,
        300,
        20,
        STARVED,
    ),
    Case("cpu-64", "cpu, batch 64", "cpu", 64, 40, 5),
    Case("cpu-1000", "cpu, batch 1000", "cpu", 1000, 4, 1),
    Case("simulated-1.5-1000", "1.5 ms, simulated, batch 1000", "simulated:1.5,0", 1000, 300, 20),
    Case("simulated-4-64", "4 ms, simulated, batch 64", "simulated:4,0", 64, 200, 20),
    Case("cuda-64", "cuda:0, batch 64", "cuda:0", 64, 400, 20),
    Case("cuda-1000", "cuda:0, batch 1000", "cuda:0", 1000, 200, 20),
)
USUAL = ("simulated-1.5-64", "simulated-4-1000", "starved-400", "cpu-64", "cpu-1000")
"""The default cases: both batch sizes and both step times, in six minutes."""


def steps_of(starts: Iterable[Sequence[float]], warmup_steps: int) -> list[float]:
    """Returns the seconds from the start of each step to that of the next one in the same epoch, without the warm-up.

    `starts` has the times at which the steps of each epoch began, on the loop's clock.
    """
    taken: list[float] = []
    number = 0
    for epoch in starts:
        for i, start in enumerate(epoch[:-1]):
            if number + i >= warmup_steps:
                taken.append(epoch[i + 1] - start)
        number += len(epoch)
    return taken
