"""What a run of a case says, compared with what is known about it: a round, and the result of all rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitprof.analysis.arrays import mean, median
from vitprof.analysis.timing.loading import synchronous
from vitprof.analysis.timing.steady import launched_s, steady_state
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.accelerators import accelerator
from vitprof.errors import JobError
from vitprof.recording.columns import TIMED_STAGES
from vitprof.selftest.cases import Case, expected_ms, idle_frac, tolerance_idle_frac, tolerance_ms
from vitprof.selftest.report import Result
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
    config = replace(run.config, inject=None)
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


@dataclass(frozen=True)
class Round:
    """Figures of a slowed run of a case, compared with the reference run just before it."""

    expected_ms: float
    """Milliseconds for each batch that the device must wait because of the slowdown."""
    reported_ms: float
    """Milliseconds for each batch that the verdict attributes to the slowdown, minus those in the reference run."""
    cause: str
    """A right cause where verdict or signatures name one; "" where the run is not input-bound; otherwise the verdict's
    cause, or its kind where it has none."""
    cause_ok: bool
    idle_frac: float
    true_idle_frac: float
    step_ms: float


def compare(case: Case, wait_ms: float, reference: Observed, slowed: Observed) -> Round:
    """Returns how a slowed run of `case` compares with its reference; `wait_ms` is the wait that each batch was given.

    The reported size is what the verdict attributes to the case's part in the slowed run, minus what it attributes to
    that part in the reference. Two kinds of cases have no wait of known length, so the expected size is measured:

    - Other programs, whose share of the CPU the system decides: how much longer the device idled in a step, by the
      host's clock and the device's known compute time, minus the additional CPU time of the job's own work.
    - Launches: how much longer they took than the kernels, by the host's clock, since a busy machine delays them.
    """
    if case.hogs:
        expected = max(0.0, slowed.step_ms - case.compute_ms) - max(0.0, reference.step_ms - case.compute_ms)
        expected -= slowed.cpu_ms - reference.cpu_ms
        reported = _contention_ms(slowed) - _contention_ms(reference)
    elif case.launch_ms:
        expected = max(0.0, slowed.launching_ms - case.compute_ms)
        reported = slowed.launch_ms - reference.launch_ms
    else:
        expected = expected_ms(wait_ms, reference.fetch_ms, case.compute_ms, case.makers)
        reported = slowed.exposed_ms.get(case.part, 0.0) - reference.exposed_ms.get(case.part, 0.0)
    named = [name for name in case.right if name in (slowed.cause, *(slowed.signatures if case.hogs else ()))]
    # A run that is not input-bound names no cause: the largest part of almost nothing does not count as one.
    free = slowed.kind == "not input-bound"
    return Round(
        expected_ms=expected,
        reported_ms=reported,
        cause=named[0] if named else "" if free else slowed.cause or slowed.kind,
        cause_ok=bool(named) if case.right else free,
        idle_frac=slowed.idle_frac,
        true_idle_frac=slowed.true_idle_frac,
        step_ms=slowed.step_ms,
    )


def _contention_ms(observed: Observed) -> float:
    return observed.cause_ms if observed.cause == "cpu_contention" else 0.0


def case_result(case: Case, rounds: Sequence[Round], *, retries: int = 0, failure: str = "") -> Result:
    """Returns the result of `case`: medians over `rounds`, and the cause that most of them named. `failure` says why
    the last round could not be compared.
    """

    def middle(figure: Callable[[Round], float]) -> float:
        return median(np.array([figure(r) for r in rounds]))

    names = Counter(r.cause for r in rounds)
    expected = middle(lambda r: r.expected_ms)
    error = middle(lambda r: r.reported_ms - r.expected_ms)
    idle_error = middle(lambda r: r.idle_frac - r.true_idle_frac)
    return Result(
        case=case.name,
        what=case.what,
        expected_ms=expected,
        reported_ms=middle(lambda r: r.reported_ms),
        error_ms=error,
        tolerance_ms=tolerance_ms(expected),
        cause=names.most_common(1)[0][0] if names else "",
        right=case.right,
        idle_frac=middle(lambda r: r.idle_frac),
        true_idle_frac=middle(lambda r: r.true_idle_frac),
        idle_error_frac=idle_error,
        rounds=len(rounds),
        retries=retries,
        cause_ok=2 * sum(r.cause_ok for r in rounds) > len(rounds),
        size_ok=abs(error) <= tolerance_ms(expected),
        idle_ok=abs(idle_error) <= tolerance_idle_frac(middle(lambda r: r.step_ms)),
        failure=failure,
    )
