"""What the cases on a device work with: the device, waits of a known length on it, and jobs that are only recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from vitprof.analysis.arrays import Series, mean
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.summary import summarise
from vitprof.analysis.verdict.verdict import Verdict, judge
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.records import STEP_COLUMNS, TELEMETRY_COLUMNS, Phase

if TYPE_CHECKING:
    from torch import Tensor

    from vitprof.engine.devices import Clock, Device, Mark
    from vitprof.engine.trainer import Trainer
    from vitprof.engine.transfer import Moved, ToInput

CALIBRATIONS = 9
SHORT_JOB: dict[str, Any] = {"threads": 1, "evaluate": False}
"""Of every job here: the device must not wait for threads of torch on a busy machine, nor for an evaluation."""
HEAVY: dict[str, Any] = {"model": "s/16", "image_size": 224, "batch_size": 64}
"""A job whose kernels take far longer than their launches: some 30 to 150 ms a step in fp32."""


@dataclass
class Bench:
    """A device and what is known about it from elsewhere; made for a GPU by `child`, by tests for stand-ins."""

    device: Device
    clock: Clock = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    utilisation: Callable[[], float] | None = None
    """Reads GPU-util in percent, as NVML has it; None where there is none."""
    no_utilisation: str = ""
    """Why not, in one line."""
    kernels_s: Callable[[Callable[[], None]], float] | None = None
    """Runs a piece of work and returns the seconds in which at least one kernel of it ran, by another tool."""
    heavy: Mapping[str, Any] = field(default_factory=lambda: HEAVY)
    """Settings of a job that the device, not the host, sets the pace of."""

    def spin(self, seconds: float) -> float:
        """Returns what to ask `Device.gate` for, so that the device waits for `seconds`; measured here.

        A gate counts ticks of a clock that PyTorch may not know, and that changes with the load: it is measured just
        before it is used, after a stretch of work.
        """
        device = self.device
        device.gate(max(0.05, seconds))  # loads the kernel, and lets the clock rise
        took = median(self.timed(lambda: device.gate(seconds)) for _ in range(CALIBRATIONS))
        return seconds * seconds / took if took > 0 else math.nan

    def timed(self, work: Callable[[], object]) -> float:
        """Returns the seconds that the device needs for what `work` launches, by marks; waits for it."""
        device = self.device
        start = device.mark()
        work()
        end = device.mark()
        device.wait(end)
        took = device.seconds(end) - device.seconds(start)
        device.release(*{id(mark): mark for mark in (start, end)}.values())
        return took

    def run(
        self,
        *,
        device: Device | None = None,
        trains: Callable[[RunConfig, Device], Trainer] | None = None,
        **settings: Any,
    ) -> Recorded:
        """Trains as `settings` say, in this process, and keeps all that is told of it.

        On the bench's device unless another one is given; with the job's own model unless `trains` gives a trainer.
        Raises what the job raises.
        """
        from vitprof.engine.train import train

        recorded = Recorded(resolve(RunConfig(device=self.device.name, **SHORT_JOB | settings)), self.clock())
        trainer = {} if trains is None else {"trains": trains}
        train(recorded.config, recorded, _never, clock=self.clock, device=device or self.device, **trainer)
        recorded.ended_s = self.clock()
        return recorded


def _never() -> bool:
    return False


@dataclass
class Recorded:
    """Takes what a job reports, and answers as its run would."""

    config: RunConfig
    """Resolved."""
    began_s: float
    ended_s: float = math.nan
    rows: list[tuple[float, ...]] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    known: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def environment(self, facts: dict[str, Any]) -> None:
        """Takes facts about what the job runs on."""
        self.known |= facts

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        """Takes a reader of gauges, which nobody asks."""

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        """Takes how far the job is."""

    def step(self, row: tuple[float, ...]) -> None:
        """Takes one step."""
        self.rows.append(row)

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        """Takes a stretch that is not a step."""
        self.phases.append(Phase(name, t_start_s, t_end_s))

    def notice(self, line: str) -> None:
        """Takes a line for people."""
        self.notices.append(line)

    def facts(self, values: dict[str, Any]) -> None:
        """Takes figures of the job as a whole."""
        self.known |= values

    @property
    def steps(self) -> Series:
        """Returns the steps by column."""
        table = np.array(self.rows, dtype=float).reshape(-1, len(STEP_COLUMNS))
        return {name: table[:, i] for i, name in enumerate(STEP_COLUMNS)}

    def steady(self, column: str) -> float:
        """Returns the mean of a column over the steady steps; NaN where it is not known."""
        steps = self.steps
        return mean(steps[column][steady_state(steps)])

    @property
    def step_ms(self) -> float:
        """Returns the mean time from one launch to the next over the steady steps, by the host's clock."""
        steps = self.steps
        launched = (steps["t_start_s"] + steps["data_wait_s"] + steps["host_s"])[steady_state(steps)]
        return float(launched[-1] - launched[0]) / (len(launched) - 1) * 1e3 if len(launched) > 1 else math.nan

    @property
    def idle_frac(self) -> float:
        """Returns the idle share that the run's summary states."""
        summary = summarise(
            self.config,
            self.steps,
            NO_TELEMETRY,
            self.phases,
            self.known,
            t_origin_s=self.began_s,
            t_end_s=self.ended_s,
        )
        return summary.device_idle_frac

    def verdict(self) -> Verdict:
        """Returns the verdict, which is not told of a wait that was put in: it must find out."""
        return judge(replace(self.config, inject=None), self.steps, self.phases, NO_TELEMETRY, self.known)


NO_TELEMETRY: Series = {name: np.empty(0) for name in TELEMETRY_COLUMNS}


class Spinning:
    """A trainer whose step is a wait on the device, of a length that is known."""

    def __init__(self, device: Device, ask_s: float) -> None:
        self._device, self._ask_s = device, ask_s

    def step(self, batch: Moved, to_input: ToInput | None) -> tuple[Mark, Tensor | None]:
        """Launches the wait. Compute begins with it: the host's own time since the copy belongs to the host."""
        start = self._device.mark()
        self._device.gate(self._ask_s)
        return start, None

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        """Does nothing: these jobs do not evaluate."""

    def evaluated(self) -> dict[str, float]:
        """Returns nothing."""
        return {}
