"""Tools of the cases on a device: the device, waits of a known length on it, and jobs recorded in memory
only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from vitprof.analysis.arrays import Series, mean
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.summary import summarise
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.experiments.trials import never
from vitprof.measure.step_columns import StepMarks, derive, gather
from vitprof.recording.columns import TELEMETRY_COLUMNS, Phase
from vitprof.recording.verdict import Verdict

if TYPE_CHECKING:
    from vitprof.engine.trainer import Launched, Trainer
    from vitprof.engine.transfer import Moved, ToInput
    from vitprof.measure.devices import Clock, Device

CALIBRATIONS = 9
"""Measurements of which the median says how long a wait really takes."""
SHORT_JOB: dict[str, Any] = {"threads": 1, "evaluate": False}
"""Settings of every job here: the device must wait neither for PyTorch's threads on a busy machine, nor
for an evaluation."""


@dataclass
class Bench:
    """A device, and other tools that measure it. `child` makes one for a GPU, tests make some for stand-ins."""

    device: Device
    clock: Clock = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    kernels_s: Callable[[Callable[[], None]], float] | None = None
    """Runs a piece of work and returns the seconds in which at least one kernel of it ran, by another
    tool; None without such a tool."""
    directory: Path = Path()

    def spin(self, seconds: float) -> float:
        """Returns what to pass to `Device.gate` so that the device waits for `seconds`; NaN where it does
        not wait at all.
        """
        device = self.device
        # loads the kernel, and lets the clock rise
        device.gate(max(0.05, seconds))
        took_s = median(self.timed(lambda: device.gate(seconds)) for _ in range(CALIBRATIONS))
        if took_s <= 0:
            return math.nan
        return seconds * seconds / took_s

    def timed(self, work: Callable[[], object]) -> float:
        """Returns the seconds that the device needs for what `work` launches, by marks. Waits for the device."""
        device = self.device
        start = device.mark()
        work()
        end = device.mark()
        device.wait(end)
        took_s = device.seconds(end) - device.seconds(start)
        # a stand-in may give the same mark twice, and none may be released twice
        device.release(*{id(mark): mark for mark in (start, end)}.values())
        return took_s

    def config(self, **settings: Any) -> RunConfig:
        """Returns the resolved config of a short job on the bench's device."""
        return resolve(RunConfig(device=self.device.name, **SHORT_JOB | settings))

    def run(
        self, *, trains: Callable[[RunConfig, Device], Trainer] | None = None, **settings: Any
    ) -> Recorded:
        """Trains with these `settings` in this process, and returns all that the job reported.

        `trains`: makes a trainer in place of the usual one.
        """
        from vitprof.engine.train import train

        recorded = Recorded(self.config(**settings), self.clock())
        options: dict[str, Any] = {"clock": self.clock, "device": self.device}
        if trains is not None:
            options["trains"] = trains
        train(recorded.config, recorded, never, **options)
        recorded.ended_s = self.clock()
        return recorded


@dataclass
class Recorded:
    """Keeps what a job reports, and gives the figures that its run would have."""

    config: RunConfig
    """Resolved."""
    began_s: float
    ended_s: float = math.nan
    marks: list[StepMarks] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    known: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def environment(self, facts: dict[str, Any]) -> None:
        self.known |= facts

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        """Ignores the reader of gauges, which nothing here needs."""

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        """Ignores how far the job is."""

    def step(self, marks: StepMarks) -> None:
        self.marks.append(marks)

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        self.phases.append(Phase(name, t_start_s, t_end_s))

    def notice(self, line: str) -> None:
        self.notices.append(line)

    def facts(self, values: dict[str, Any]) -> None:
        self.known |= values

    @property
    def steps(self) -> Series:
        """Returns the steps by column, (n,) float64 each."""
        return derive(gather(self.marks))

    def steady(self, column: str) -> float:
        """Returns the mean of a column over the steady steps; NaN where it is not known."""
        steps = self.steps
        return mean(steps[column][steady_state(steps)])

    @property
    def step_ms(self) -> float:
        """Returns the mean time (ms) from one launch to the next over the steady steps, by the host's
        clock; NaN with fewer than two.
        """
        steps = self.steps
        launched_s = steps["t_start_s"] + steps["data_wait_s"] + steps["host_s"]
        launched_s = launched_s[steady_state(steps)]
        if len(launched_s) < 2:
            return math.nan
        return float(launched_s[-1] - launched_s[0]) / (len(launched_s) - 1) * 1e3

    @property
    def idle_frac(self) -> float:
        """Returns the device's idle share (0..1), as a run's summary states it."""
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
        """Returns the verdict; it must find the cause itself, without the setting of an injected wait."""
        config = replace(self.config, inject=None)
        return judge(config, self.steps, self.phases, NO_TELEMETRY, self.known)


NO_TELEMETRY: Series = {name: np.empty(0) for name in TELEMETRY_COLUMNS}


@dataclass
class Spinning:
    """A trainer whose step is `n` waits on the device, launched at most one every `every_s` seconds."""

    device: Device
    ask_s: float
    n: int = 1
    every_s: float = 0.0
    clock: Clock = time.perf_counter

    def launch(self) -> None:
        """Launches a step's waits.

        Time lost by a late launch is not made up: the device must never fall behind.
        """
        for _ in range(self.n):
            due = self.clock() + self.every_s
            self.device.gate(self.ask_s)
            while self.clock() < due:
                pass

    def step(self, batch: Moved, to_input: ToInput | None) -> Launched:
        """Launches the waits.

        Compute begins with them, so that the host's time since the copy is not counted.
        """
        # Imported here: the parent that only reads the results has no PyTorch.
        from vitprof.engine.trainer import Launched

        start = self.device.mark()
        self.launch()
        return Launched(start)

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        """Does nothing: these jobs do not evaluate."""

    def held_up_frac(self) -> float:
        """Returns NaN: it is not measured."""
        return math.nan

    def evaluated(self) -> dict[str, float]:
        return {}
