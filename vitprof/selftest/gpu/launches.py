"""Launch-bound: 300 tiny kernels a step, launched slower than they run; and the time of the kernels alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitprof.analysis.arrays import median
from vitprof.selftest.gpu.bench import Bench, Recorded
from vitprof.selftest.report import Outcome, judged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from vitprof.engine.transfer.contract import Moved, ToInput
    from vitprof.measure.devices import Clock, Device, Mark

KERNELS = 300
"""Kernels of a step, about as many as the six layers of `tiny` have (`config.accelerators.LAUNCHES_PER_LAYER`)."""
TINY_S, TINY_EVERY_S = 2e-6, 10e-6
"""Kernels of 2 us, one every 10 us: about as long as Python takes to launch one with PyTorch."""
LONGER_S, LONGER_EVERY_S = 40e-6, 80e-6
"""Kernels of 40 us, one every 80 us. Between two queued kernels a GPU needs up to 1 us, which no tool counts as kernel
time: little enough beside 40 us to compare within 5%."""
MOST_OFF_FRAC = 0.05
PROFILED_STEPS = 5
JOB: dict[str, Any] = {
    "dataset": "digits",
    "strategy": "memory",
    "transfer": "pinned",
    "batch_size": 64,
    "warmup_steps": 8,
    "steps": 80,
}


@dataclass
class ManyKernels:
    """A trainer whose step is `KERNELS` short waits on the device, launched at most one every `every_s` seconds."""

    device: Device
    ask_s: float
    every_s: float
    clock: Clock

    def launch(self) -> None:
        """Launches a step's kernels. Time lost by a late launch is not made up: the device must never fall behind."""
        for _ in range(KERNELS):
            due = self.clock() + self.every_s
            self.device.gate(self.ask_s)
            while self.clock() < due:
                pass

    def step(self, batch: Moved, to_input: ToInput | None) -> tuple[Mark, Tensor | None]:
        """Launches a step's kernels for a batch that is ready; returns the mark that it was ready, and no loss."""
        self.launch()
        return batch.ready, None

    def evaluate(self, batch: Moved, to_input: ToInput | None) -> None:
        """Does nothing: these jobs do not evaluate."""

    def evaluated(self) -> dict[str, float]:
        """Returns no figures."""
        return {}


def launch_bound(bench: Bench) -> Outcome:
    """Trains on tiny kernels, which must be called launch-bound, and on longer ones, whose time must be right."""
    wrong = []
    tiny, _ = _trained(bench, TINY_S, TINY_EVERY_S)
    verdict = tiny.verdict()
    if verdict.kind != "launch-bound":
        wrong.append(f"{KERNELS} kernels of {TINY_S * 1e6:g} µs were called {verdict.kind}")
    longer, launch = _trained(bench, LONGER_S, LONGER_EVERY_S)
    kernel_s, union_s = median(longer.steps["kernel_s"]), math.nan
    measured = f"{KERNELS} kernels: {verdict.kind}"
    if math.isnan(kernel_s):
        wrong.append("no step was measured behind a gate")
    elif bench.kernels_s is None or math.isnan(union_s := _union_s(bench, launch)):
        measured += f"; kernel time {kernel_s * 1e3:.2f} ms, not compared: torch.profiler sees no kernels here (CUPTI)"
    else:
        off = kernel_s / union_s - 1
        measured += f"; kernel time {kernel_s * 1e3:.2f} ms, torch.profiler {union_s * 1e3:.2f} ms ({off:+.1%})"
        if abs(off) > MOST_OFF_FRAC:
            wrong.append(f"kernel time is off by {off:+.1%}, and {MOST_OFF_FRAC:.0%} is allowed")
    return judged(
        measured,
        wrong,
        kernels=KERNELS,
        kind=verdict.kind,
        launch_frac=verdict.launch_frac,
        tiny_kernel_ms=median(tiny.steps["kernel_s"]) * 1e3,
        tiny_compute_ms=tiny.steady("compute_s") * 1e3,
        kernel_ms=kernel_s * 1e3,
        profiler_kernel_ms=union_s * 1e3,
    )


def _trained(bench: Bench, kernel_s: float, every_s: float) -> tuple[Recorded, Callable[[], None]]:
    kernels = ManyKernels(bench.device, bench.spin(kernel_s), every_s, bench.clock)
    return bench.run(trains=lambda config, device: kernels, **JOB), kernels.launch


def _union_s(bench: Bench, launch: Callable[[], None]) -> float:
    """Returns the seconds of a step in which a kernel ran, by torch.profiler; NaN where it sees none."""
    assert bench.kernels_s is not None

    def work() -> None:
        for _ in range(PROFILED_STEPS):
            launch()
        bench.device.synchronize()

    return bench.kernels_s(work) / PROFILED_STEPS or math.nan


def kernels_s(work: Callable[[], None]) -> float:
    """Returns the seconds of the union of all kernels and copies of `work` on CUDA devices; 0 where none is seen.

    torch.profiler uses CUPTI, which some containers and drivers deny to users. `work` must wait for its device.
    """
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
    events = profiled.events() or ()
    spans = ((e.time_range.start, e.time_range.end) for e in events if e.device_type == DeviceType.CUDA)
    return union(spans) / 1e6  # microseconds


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the total length that the spans (start, end) cover."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
