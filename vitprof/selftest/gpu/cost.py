"""Own cost: the small model with all of vitprof's marks and clocks, in turns with the plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.experiments.trials import never
from vitprof.selftest.gpu.bench import SHORT_JOB, Bench, Recorded
from vitprof.selftest.report import Outcome, judged

if TYPE_CHECKING:
    from vitprof.measure.devices import Device

LEAST_ROUNDS, MOST_ROUNDS = 5, 9
STEPS, WARMUP_STEPS = 200, 20
MOST_COST_FRAC = 0.02
# The copy blocks: the device then waits for the host after each step, and what recording costs is not hidden.
JOB: dict[str, Any] = {
    "dataset": "digits",
    "strategy": "memory",
    "transfer": "blocking",
    "batch_size": 64,
    "model": "tiny",
    "warmup_steps": WARMUP_STEPS,
}


class Unmarked:
    """A device on which marks cost nothing and mean nothing. Everything else is passed on to the device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def mark(self) -> float:
        """Returns a placeholder for a mark."""
        return 0.0


def own_cost(bench: Bench) -> Outcome:
    """Trains in turns with recording and without, and compares the times of a step by the host's clock.

    It does so at least `LEAST_ROUNDS` times, and more while it is open on which side of 2% the cost is.
    """
    pairs: list[tuple[float, float]] = []
    low = high = math.nan
    while len(pairs) < MOST_ROUNDS:
        first, second = (_recorded_s, _plain_s) if len(pairs) % 2 == 0 else (_plain_s, _recorded_s)
        took = {way: way(bench) for way in (first, second)}
        pairs.append((took[_recorded_s], took[_plain_s]))
        costs = sorted(on / off - 1 for on, off in pairs)
        low, high = costs[len(costs) // 4], costs[-1 - len(costs) // 4]
        if len(pairs) >= LEAST_ROUNDS and not low <= MOST_COST_FRAC <= high:
            break
    cost = median(costs)
    step_ms = median(off for _, off in pairs) * 1e3
    spread = f"half of the rounds are between {low:+.1%} and {high:+.1%}"
    wrong = [] if cost <= MOST_COST_FRAC else [f"{cost:+.1%} is more than {MOST_COST_FRAC:.0%}; {spread}"]
    return judged(
        f"{cost:+.1%} of a step of {step_ms:.2f} ms, {len(pairs)} rounds; {spread}",
        wrong,
        recorded_step_ms=[on * 1e3 for on, _ in pairs],
        plain_step_ms=[off * 1e3 for _, off in pairs],
    )


def _recorded_s(bench: Bench) -> float:
    """Returns the median seconds of a step that is recorded as in any run."""
    # the steps behind gates count as warm-up too
    recorded: Recorded = bench.run(steps=STEPS + WARMUP_STEPS, **JOB)
    steps = recorded.steps
    starts = [steps["t_start_s"][(steps["epoch"] == epoch) & (steps["warmup"] == 0)] for epoch in set(steps["epoch"])]
    return float(np.median(np.concatenate([np.diff(start) for start in starts])))


def _plain_s(bench: Bench) -> float:
    """Returns the median seconds of a step of the same loop written plainly: fetch, copy, train."""
    from vitprof.engine.pipeline import open_pipeline
    from vitprof.engine.trainer import open_trainer

    config = resolve(
        RunConfig(device=bench.device.name, steps=STEPS + WARMUP_STEPS, loader_times=False, **SHORT_JOB | JOB)
    )
    device = cast("Device", Unmarked(bench.device))
    recorded = Recorded(config, bench.clock())
    trainer = open_trainer(config, bench.device)
    took: list[float] = []
    with open_pipeline(config, device, recorded, never, bench.clock, evaluate=False) as pipeline:
        split = pipeline.train
        to_input: Callable[..., Any] | None = None if split.transfer.normalises else split.to_input
        epoch = 0
        while len(took) < STEPS + WARMUP_STEPS:
            with closing(split.loader.epoch(epoch)) as batches:
                start = bench.clock()
                for batch in batches:
                    trainer.step(split.transfer(batch), to_input)
                    now = bench.clock()
                    took.append(now - start)
                    start = now
            epoch += 1
        bench.device.synchronize()
    return float(np.median(took[WARMUP_STEPS : WARMUP_STEPS + STEPS]))
