"""What vitprof reports about a run of a case, next to what is known about that run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import mean
from vitprof.analysis.timing.exposure import synchronous
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.step_times import launched_s
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.accelerators import accelerator
from vitprof.errors import JobError
from vitprof.recording.columns import TIMED_STAGES
from vitprof.selftest.arithmetic import idle_frac
from vitprof.selftest.cases import Case
from vitprof.store import RunStore


@dataclass(frozen=True)
class Observed:
    """Figures of a run of a case, over its steady steps."""

    kind: str
    """The verdict's kind."""
    cause: str
    """The cause that the verdict names."""
    cause_ms: float
    """Milliseconds for each batch that the verdict attributes to that cause."""
    launch_ms: float
    """Milliseconds that, by the verdict, the device waited for launches inside each step; 0 where it is not known."""
    launching_ms: float
    """Mean milliseconds from the arrival of a batch to the last launch of its step, by the host's clock."""
    signatures: tuple[str, ...]
    """Names of the patterns that were found."""
    exposed_ms: Mapping[str, float]
    """Part of loading -> milliseconds for each batch that the verdict attributes to it."""
    idle_frac: float
    """The device's idle share, as the run's summary states it."""
    true_idle_frac: float
    """The idle share by arithmetic: from the device's known time, and steps and launches by the host's clock."""
    step_ms: float
    """Mean milliseconds of a step by the host's clock: from one launch to the next."""
    cpu_ms: float
    """CPU milliseconds of the job for each step, as the system counts them; NaN without a reading in the steady
    steps."""
    fetch_ms: float
    """Mean milliseconds that making a batch takes: in the loop, in a worker, or in all threads together."""
    start_s: float
    """When the steady steps began, in seconds on the monotonic clock."""
    end_s: float
    """When they ended."""


def observe(store: RunStore, run_id: int, case: Case) -> Observed:
    """Returns the figures of a run of `case`. Raises `JobError` where it did not finish or has too few steady steps.

    The verdict does not see the setting that names the injected wait: it must find the cause by itself.
    """
    run = store.run(run_id)
    if run.status != "done" or run.summary is None:
        raise JobError(f"its job did not finish ({run.status}{': ' if run.error else ''}{run.error})")
    steps, telemetry = store.steps(run_id), store.telemetry(run_id)
    config = dataclasses.replace(run.config, inject=None)
    verdict = judge(config, steps, run.phases, telemetry, run.environment | run.facts)
    steady = steady_state(steps)
    launched = launched_s(steps)[steady]
    # With several workers or threads batches arrive in bunches: only whole bunches have the mean time.
    n = (len(launched) - 1) // case.makers * case.makers
    if n < 1:
        raise JobError("its job has too few steady steps")
    step_ms = float(launched[-1] - launched[-1 - n]) / n * 1e3
    if synchronous(run.config):
        fetch = steps["data_wait_s"]
    elif run.config.loader == "threads":  # several threads work on a batch at once
        fetch = np.sum([steps[f"{stage}_s"] for stage in TIMED_STAGES], axis=0)
    else:
        fetch = steps["made_end_s"] - steps["made_start_s"]
    read = telemetry["job_cpu_pct"][(telemetry["t_s"] >= launched[0]) & (telemetry["t_s"] <= launched[-1])]
    launching_ms = float(steps["host_s"][steady].mean()) * 1e3
    launches = accelerator(run.config.device).launch_s > 0
    return Observed(
        kind=verdict.kind,
        cause=verdict.cause,
        cause_ms=verdict.cause_ms_per_batch,
        launch_ms=float(np.nan_to_num(verdict.launch_frac)) * step_ms,
        launching_ms=launching_ms,
        signatures=tuple(signature.name for signature in verdict.signatures),
        exposed_ms={share.name: share.exposed_ms for share in verdict.shares},
        idle_frac=run.summary.device_idle_frac,
        true_idle_frac=idle_frac(max(case.compute_ms, launching_ms if launches else 0.0), step_ms),
        step_ms=step_ms,
        cpu_ms=mean(read) / 100 * step_ms,
        fetch_ms=float(fetch[steady].mean()) * 1e3,
        start_s=float(launched[0]),
        end_s=float(launched[-1]),
    )
