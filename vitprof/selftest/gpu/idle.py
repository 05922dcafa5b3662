"""Known idle: the device is busy for a known time in each step, and a known wait is put into each stage of loading."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from vitprof.analysis.timing.steady import steady_state
from vitprof.config import RunConfig
from vitprof.recording.columns import DELAYED_STAGES
from vitprof.selftest.cases import Case, expected_ms, idle_frac
from vitprof.selftest.gpu.bench import Bench, Recorded, Spinning
from vitprof.selftest.report import Outcome, judged
from vitprof.selftest.results import Round, case_result

COMPUTE_MS = 1.0
WAITS_MS = (2.0, 20.0)
LATE_SLEEPS = 10
ROUNDS = 3
"""Rounds at most: a wait that is not right at once is measured again, and medians decide."""
# Sample by sample in the loop, as tutorials do: every stage can be told apart. Few samples, so that 2 ms stand out.
JOB: dict[str, Any] = {
    "dataset": "digits",
    "strategy": "per-sample",
    "batch_size": 8,
    "warmup_steps": 8,
    "steps": 40,
}


def _case(stage: str, wait_ms: float) -> Case:
    name = f"{wait_ms:g} ms in {stage}" if stage else "no wait"
    changes = {"inject": f"{stage}:{wait_ms:g}"} if stage else {}
    right = (stage,) if stage else ()
    return Case(name=name, what=name, base=RunConfig(**JOB), changes=changes, part=stage, right=right)


CASES = (_case("", 0.0), *(_case(stage, wait_ms) for stage in DELAYED_STAGES for wait_ms in WAITS_MS))


def known_idle(bench: Bench) -> Outcome:
    """Trains with no wait, then with each wait in each stage, and compares what vitprof reports with the wait."""
    rounds: dict[str, list[Round]] = {case.name: [] for case in CASES}
    compute_ms: list[float] = []
    for _ in range(ROUNDS):
        again = [case for case in CASES if not rounds[case.name] or not case_result(case, rounds[case.name]).ok]
        if not again:
            break
        reference = _trained(bench, {})
        compute_ms.append(reference.steady("compute_s") * 1e3)
        for case in again:
            rounds[case.name].append(_round(bench, case, reference))
    results = [case_result(case, rounds[case.name]) for case in CASES]
    wrong = [f"{result.case}: {result.wrong}" for result in results if not result.ok]
    if wrong and not 0.9 * COMPUTE_MS <= median(compute_ms) <= 1.1 * COMPUTE_MS:  # a laptop that saves power
        wrong.append(f"the device's clock changed: {COMPUTE_MS:g} ms of work took {median(compute_ms):.2f} ms")
    error_ms = max(abs(result.error_ms) for result in results)
    idle = max(abs(result.idle_error_frac) for result in results)
    return judged(
        f"{sum(result.ok for result in results)} of {len(CASES)} waits right; sizes within {error_ms:.2f} ms, "
        f"idle shares within {idle * 100:.1f} points",
        wrong,
        compute_ms=compute_ms,
        waits={result.case: result.to_dict() for result in results},
    )


def _trained(bench: Bench, settings: dict[str, Any]) -> Recorded:
    ask_s = bench.spin(COMPUTE_MS / 1e3)
    return bench.run(trains=lambda config, device: Spinning(device, ask_s), **JOB | settings)


def _fetched_ms(recorded: Recorded) -> list[float]:
    """Returns for each steady step the ms from the device's start of the previous step to the arrival of its batch."""
    steps = recorded.steps
    fetched = steps["t_start_s"] + steps["data_wait_s"]
    since_s = (fetched[1:] - steps["compute_start_s"][:-1])[steady_state(steps)[1:]]
    return [float(seconds) * 1e3 for seconds in since_s]


def _slept_ms(bench: Bench, wait_ms: float) -> float:
    """Returns how many ms a sleep of `wait_ms` really takes in this thread, since waking up takes time too.

    It is not measured in another thread during the job, which would also wait for Python's lock.
    """
    took = []
    for _ in range(LATE_SLEEPS):
        began = bench.clock()
        bench.sleep(wait_ms / 1e3)
        took.append(bench.clock() - began)
    return fmean(took) * 1e3


def _round(bench: Bench, case: Case, reference: Recorded) -> Round:
    recorded, wait_ms = reference, 0.0
    if case.injected_ms is not None:
        before_ms = _slept_ms(bench, case.injected_ms)
        recorded = _trained(bench, dict(case.changes))
        wait_ms = (before_ms + _slept_ms(bench, case.injected_ms)) / 2
    verdicts = recorded.verdict(), reference.verdict()
    costs = [{share.name: share.exposed_ms for share in v.shares}.get(case.part, 0.0) for v in verdicts]
    return Round(
        # step by step: a fetch that is late now and then must not change what is expected of the other steps
        expected_ms=fmean(expected_ms(wait_ms, fetch, COMPUTE_MS) for fetch in _fetched_ms(reference)),
        reported_ms=costs[0] - costs[1],
        cause=verdicts[0].cause,
        cause_ok=not case.right or verdicts[0].cause in case.right,
        idle_frac=recorded.idle_frac,
        true_idle_frac=idle_frac(COMPUTE_MS, recorded.step_ms),
        step_ms=recorded.step_ms,
    )
