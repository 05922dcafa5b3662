"""The cases of the self-test on a GPU, in the order in which they are run."""

from __future__ import annotations

from dataclasses import dataclass

TOTAL_S = 300.0
"""The most seconds that the self-test takes; cases that come too late are reported as not run."""
OPENING_S = 15.0
"""Seconds of these for loading PyTorch and opening the device."""


@dataclass(frozen=True, kw_only=True)
class GpuCase:
    """One thing that must be right on a GPU."""

    name: str
    expected: str
    """What must be found, in words."""
    budget_s: float
    """Seconds that it may take, on top of what the cases before it left of theirs; then it is ended and has failed."""
    run: str
    """The function that runs it, as MODULE.FUNCTION within this package."""
    on_device: bool = True
    """Whether it uses the device, in the separate process; otherwise it starts jobs and scripts."""


_DEVICE_CASES: tuple[GpuCase, ...] = (
    GpuCase(
        name="preflight",
        expected="nothing bad, and a first kernel that gives the right result",
        budget_s=10,
        run="preflight.machine",
    ),
    GpuCase(
        name="clock mapping",
        expected="1,000 marks inside their host brackets, within 50 µs; drift under 20 µs a second",
        budget_s=9,
        run="clock.clock_mapping",
    ),
    GpuCase(
        name="known idle",
        expected="0, 2 and 20 ms put into each stage and the transfer: right cause, 10% or 0.3 ms, idle within 1 point",
        budget_s=40,
        run="idle.known_idle",
    ),
    GpuCase(
        name="launch-bound",
        expected="300 tiny kernels are called launch-bound; kernel time within 5% of torch.profiler's union of kernels",
        budget_s=15,
        run="launches.launch_bound",
    ),
    GpuCase(
        name="compute-bound",
        expected="deferred marks within 2% of forced synchronisation",
        budget_s=20,
        run="deferred.compute_bound",
    ),
    GpuCase(
        name="copies",
        expected="80% of the measured pinned bandwidth or more, at 38 MB",
        budget_s=8,
        run="copies.copy_bandwidth",
    ),
    GpuCase(
        name="prefetch",
        expected="no torn batch in 1,000; 90% or more of the copying runs beside compute",
        budget_s=12,
        run="copies.prefetch_overlap",
    ),
    GpuCase(
        name="undersized DALI",
        expected="input-bound, by decoding",
        budget_s=12,
        run="decoding.undersized_decoder",
    ),
    GpuCase(
        name="GPU-util",
        expected="NVML within 10 points of event-busy on a half-busy job",
        budget_s=8,
        run="utilisation.half_busy",
    ),
    GpuCase(
        name="own cost",
        expected="recording costs 2% or less of a step of `tiny`",
        budget_s=20,
        run="cost.own_cost",
    ),
)
_JOB_CASES: tuple[GpuCase, ...] = (
    GpuCase(
        name="every strategy",
        expected="20 steps each in a process of its own, with workers and pinning where it has them",
        budget_s=55,
        run="strategies.every_strategy",
        on_device=False,
    ),
    GpuCase(
        name="other GPU",
        expected="a job on GPU 1 leaves nothing on GPU 0",
        budget_s=10,
        run="other_gpu.nothing_on_the_first",
        on_device=False,
    ),
    GpuCase(
        name="nothing left",
        expected="stop, kill and out-of-memory leave no process and no device memory",
        budget_s=25,
        run="leftovers.nothing_left",
        on_device=False,
    ),
    GpuCase(
        name="scripts",
        expected="every generated script trains with --demo",
        budget_s=40,
        run="scripts.every_script",
        on_device=False,
    ),
)
GPU_CASES: tuple[GpuCase, ...] = (*_DEVICE_CASES, *_JOB_CASES)
