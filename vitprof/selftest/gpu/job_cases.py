"""Cases of whole jobs: known waits are found, recording costs next to nothing, and every strategy trains."""

import math
from contextlib import closing
from statistics import fmean, median
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.steady import steady_state
from vitprof.config import RunConfig, parts
from vitprof.config.availability import why_unavailable
from vitprof.config.strategies import STRATEGIES, strategy
from vitprof.datasets import catalog
from vitprof.errors import VitprofError, one_line
from vitprof.experiments.trials import Trial, job_manager, never, run_trials
from vitprof.recording.columns import DELAYED_STAGES
from vitprof.recording.verdict import Verdict
from vitprof.selftest.cases import N_PHOTOS, Case, Round, case_result, expected_ms, idle_frac
from vitprof.selftest.gpu.bench import Bench, Recorded, Spinning
from vitprof.selftest.report import CaseOutcome, judged
from vitprof.store import RunStore

COMPUTE_MS = 1.0
"""How long the device computes in a step."""
WAITS_MS = (2.0, 20.0)
LATE_SLEEPS = 10
"""Sleeps by which it is measured how long one really takes."""
ROUNDS = 3
"""The most rounds of a case; one that is right is not run again."""
# Sample by sample in the loop, as tutorials do: every stage can be told apart. Few samples, so that 2 ms stand out.
IDLE_JOB: dict[str, Any] = {
    "strategy": "per-sample",
    "batch_size": 8,
    "warmup_steps": 8,
    "steps": 40,
}
IDLE_BASE = RunConfig(**IDLE_JOB)
IDLE_CASES = (
    Case(name="no wait", what="no wait", base=IDLE_BASE, part="", right=()),
    *(
        Case.waiting(f"{wait_ms:g} ms in {stage}", "", IDLE_BASE, stage, wait_ms)
        for stage in DELAYED_STAGES
        for wait_ms in WAITS_MS
    ),
)


def known_idle(bench: Bench) -> CaseOutcome:
    """Trains with no wait, then with each wait in each stage, and compares what vitprof reports with the
    wait.
    """
    rounds: dict[str, list[Round]] = {case.name: [] for case in IDLE_CASES}
    compute_ms: list[float] = []
    for _ in range(ROUNDS):
        again = [
            case
            for case in IDLE_CASES
            if not rounds[case.name] or not case_result(case, rounds[case.name]).ok
        ]
        if not again:
            break
        reference = _spun(bench, {})
        compute_ms.append(reference.steady("compute_s") * 1e3)
        for case in again:
            rounds[case.name].append(_round(bench, case, reference))
    results = [case_result(case, rounds[case.name]) for case in IDLE_CASES]
    wrong = [f"{result.case}: {result.wrong}" for result in results if not result.ok]
    # a laptop that saves power
    if wrong and not 0.9 * COMPUTE_MS <= median(compute_ms) <= 1.1 * COMPUTE_MS:
        wrong.append(
            f"the device's clock changed: {COMPUTE_MS:g} ms of work took {median(compute_ms):.2f} ms"
        )
    error_ms = max(abs(result.error_ms) for result in results)
    idle = max(abs(result.idle_error_frac) for result in results)
    return judged(
        f"{sum(result.ok for result in results)} of {len(IDLE_CASES)} waits right; sizes within {error_ms:.2f} ms, "
        f"idle shares within {idle * 100:.1f} points",
        wrong,
        compute_ms=compute_ms,
        waits={result.case: result.to_dict() for result in results},
    )


def _spun(bench: Bench, settings: dict[str, Any]) -> Recorded:
    ask_s = bench.spin(COMPUTE_MS / 1e3)
    return bench.run(trains=lambda config, device: Spinning(device, ask_s), **IDLE_JOB | settings)


def _slept_ms(bench: Bench, wait_ms: float) -> float:
    """Returns how many ms a sleep of `wait_ms` really takes in this thread: another thread would also
    wait for Python's lock.
    """
    began = bench.clock()
    for _ in range(LATE_SLEEPS):
        bench.sleep(wait_ms / 1e3)
    return (bench.clock() - began) / LATE_SLEEPS * 1e3


def _round(bench: Bench, case: Case, reference: Recorded) -> Round:
    recorded = reference
    wait_ms = 0.0
    if case.injected_ms is not None:
        before_ms = _slept_ms(bench, case.injected_ms)
        recorded = _spun(bench, dict(case.changes))
        wait_ms = (before_ms + _slept_ms(bench, case.injected_ms)) / 2
    steps = reference.steps
    step_ms = recorded.step_ms
    # from the device's start of a step to the arrival of the next batch
    fetched_s = (steps["t_start_s"] + steps["data_wait_s"])[1:] - steps["compute_start_s"][:-1]
    # step by step: a fetch that is late now and then must not change what is expected of the others
    fetched_ms = fetched_s[steady_state(steps)[1:]] * 1e3
    expected = fmean(expected_ms(wait_ms, fetch_ms, COMPUTE_MS) for fetch_ms in fetched_ms)
    verdict = recorded.verdict()
    before = reference.verdict()
    return Round(
        expected_ms=expected,
        reported_ms=_cost_ms(verdict, case.part) - _cost_ms(before, case.part),
        cause=verdict.cause,
        cause_ok=not case.right or verdict.cause in case.right,
        idle_frac=recorded.idle_frac,
        true_idle_frac=idle_frac(COMPUTE_MS, step_ms),
        step_ms=step_ms,
    )


def _cost_ms(verdict: Verdict, part: str) -> float:
    """Returns the milliseconds for each batch that a verdict attributes to a part of loading."""
    return {share.name: share.exposed_ms for share in verdict.shares}.get(part, 0.0)


LEAST_COST_ROUNDS = 5
MOST_COST_ROUNDS = 9
COST_S = 50.0
"""Seconds after which no round begins."""
COST_STEPS = 200
COST_WARMUP_STEPS = 20
MOST_COST_FRAC = 0.02
"""The most that recording may cost, as a share of a step."""
# The copy blocks: the device then waits for the host after each step, and what recording costs is not hidden.
COST_JOB: dict[str, Any] = {"strategy": "memory", "transfer": "blocking", "batch_size": 64}


def own_cost(bench: Bench) -> CaseOutcome:
    """Compares a step with all marks and clocks with one of a plain loop, in turns, until it is decided."""
    pairs: list[tuple[float, float]] = []
    low = math.nan
    high = math.nan
    until_s = bench.clock() + COST_S
    while len(pairs) < MOST_COST_ROUNDS and (not pairs or bench.clock() < until_s):
        # each of them first in turns: a clock that rises or falls favours neither
        if len(pairs) % 2 == 0:
            recorded_s = _recorded_s(bench)
            plain_s = _plain_s(bench)
        else:
            plain_s = _plain_s(bench)
            recorded_s = _recorded_s(bench)
        pairs.append((recorded_s, plain_s))
        costs = sorted(on / off - 1 for on, off in pairs)
        # of 5 rounds none, of 9 one: 94 and 96% by a sign test
        outer = max(0, len(costs) - LEAST_COST_ROUNDS) // 4
        low = costs[outer]
        high = costs[-1 - outer]
        if len(pairs) >= LEAST_COST_ROUNDS and not low <= MOST_COST_FRAC <= high:
            break
    cost = median(costs)
    step_ms = median(off for _, off in pairs) * 1e3
    spread = f"{len(costs) - 2 * outer} of them are between {low:+.1%} and {high:+.1%}"
    measured = f"{cost:+.1%} of a step of {step_ms:.2f} ms, {len(pairs)} rounds; {spread}"
    figures = {
        "recorded_step_ms": [on * 1e3 for on, _ in pairs],
        "plain_step_ms": [off * 1e3 for _, off in pairs],
    }
    if len(pairs) < LEAST_COST_ROUNDS or low <= MOST_COST_FRAC < cost:
        why = f"undecided: {spread}; run it again with nothing else running"
        return CaseOutcome("not run", measured, why, figures)
    wrong = []
    if not cost <= MOST_COST_FRAC:
        wrong.append(f"{cost:+.1%} is more than {MOST_COST_FRAC:.0%}; {spread}")
    return judged(measured, wrong, **figures)


def _cost_job(**changes: Any) -> dict[str, Any]:
    return {
        **COST_JOB,
        "steps": COST_STEPS + COST_WARMUP_STEPS,
        "warmup_steps": COST_WARMUP_STEPS,
        **changes,
    }


def _recorded_s(bench: Bench) -> float:
    """Returns the median seconds of a step of a job that is recorded."""
    steps = bench.run(**_cost_job()).steps
    # the steps behind gates count as warm-up too
    counted = steps["warmup"] == 0
    took = []
    for epoch in set(steps["epoch"]):
        starts_s = steps["t_start_s"][counted & (steps["epoch"] == epoch)]
        took.append(np.diff(starts_s))
    return float(np.median(np.concatenate(took)))


class Unmarked:
    """A device on which marks cost nothing and mean nothing. Everything else is passed on to the device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def mark(self) -> float:
        return 0.0


def _plain_s(bench: Bench) -> float:
    """Returns the median seconds of a step of the same training in a plain loop."""
    from vitprof.engine.pipeline import open_pipeline
    from vitprof.engine.trainer import open_trainer

    config = bench.config(**_cost_job(loader_times=False))
    n = COST_STEPS + COST_WARMUP_STEPS
    device: Any = Unmarked(bench.device)
    trainer = open_trainer(config, bench.device)
    took: list[float] = []
    recorded = Recorded(config, bench.clock())
    with open_pipeline(config, device, recorded, never, bench.clock, evaluate=False) as pipeline:
        split = pipeline.train
        to_input = None if split.transfer.normalises else split.to_input
        epoch = 0
        while len(took) < n:
            with closing(split.loader.epoch(epoch)) as batches:
                start = bench.clock()
                for _, batch in zip(range(n - len(took)), batches, strict=False):
                    trainer.step(split.transfer(batch), to_input)
                    now = bench.clock()
                    took.append(now - start)
                    start = now
            epoch += 1
        bench.device.synchronize()
    return float(np.median(took[COST_WARMUP_STEPS:]))


STEPS = 20
FIRST = ("device", "prefetch", "dali", "memory", "workers", "threads")
"""The strategies whose parts a GPU has a share in; they are run before the others, for which the time may
end."""
IN_ORDER = [*FIRST, *(name for name in STRATEGIES if name not in FIRST)]
STRATEGIES_S = 75.0
"""Seconds for all strategies."""
HUNG_S = 40.0
"""A strategy that had run for so many seconds when the time ended has failed."""


def settings_for(name: str) -> dict[str, Any]:
    """Returns the settings of a job: photos if the strategy can load them, workers and pinning if it
    takes them.
    """
    plan = strategy(name)
    info = catalog.dataset_info("photos", N_PHOTOS)
    settings: dict[str, Any] = {"dataset": "photos", "n_images": N_PHOTOS}
    if parts.why_not(info, plan.combination(info)) is not None:
        info = catalog.dataset_info("digits")
        settings = {"dataset": "digits"}
    accepted = plan.knobs(plan.combination(info), info)
    wanted = {"workers": 2, "pin_memory": True, "slow_mb_s": 200.0, "slow_latency_ms": 1.0}
    settings |= {"strategy": name, "batch_size": 8}
    return settings | {knob: value for knob, value in wanted.items() if knob in accepted}


def every_strategy(bench: Bench) -> CaseOutcome:
    """Runs each strategy that can run here, one after another, and checks its steps."""
    wrong: list[str] = []
    unavailable: list[str] = []
    late: list[str] = []
    step_ms: dict[str, float] = {}
    ends_s = bench.clock() + STRATEGIES_S
    with (
        closing(RunStore(f"sqlite:///{bench.directory / 'runs.sqlite'}")) as store,
        job_manager(store, logs=bench.directory) as manager,
    ):
        for name in IN_ORDER:
            settings = settings_for(name)
            info = catalog.dataset_info(settings["dataset"], settings.get("n_images"))
            reason = why_unavailable(strategy(name), info)
            if reason:
                unavailable.append(f"{name} ({reason})")
                continue
            job = {
                "device": bench.device.name,
                "steps": STEPS,
                "warmup_steps": 4,
                "evaluate": False,
            }
            begun_s = bench.clock()
            try:
                trial = Trial(RunConfig(**settings | job), name)
                ran = list(run_trials(manager, [trial], "", stop=lambda: bench.clock() > ends_s))
            except VitprofError as error:
                wrong.append(f"{name}: {one_line(error)}")
                continue
            if not ran:
                late.append(name)
                continue
            [(_, run_id)] = ran
            run = store.run(run_id)
            if run.status == "stopped" and bench.clock() - begun_s < HUNG_S:
                late.append(name)
                continue
            failure = f"{run.status}: {run.error}"
            if run.status == "done":
                failure = wrong_steps(store.steps(run.id))
            if failure:
                wrong.append(f"{name}: {failure}")
                continue
            step_ms[name] = math.nan if run.summary is None else run.summary.step_ms_median
    measured = f"{len(step_ms)} of {len(IN_ORDER)} trained {STEPS} steps"
    if unavailable:
        measured += f"; cannot run here: {', '.join(unavailable)}"
    if late:
        measured += f"; not reached: {', '.join(late)}"
    figures = {
        "passed": list(step_ms),
        "cannot_run": unavailable,
        "not_reached": late,
        "step_ms_median": step_ms,
    }
    if late and not wrong:
        return CaseOutcome("not run", measured, f"its {STRATEGIES_S:.0f} s were over", figures)
    return judged(measured, wrong, **figures)


def wrong_steps(steps: Series) -> str:
    """Returns what is wrong with the steps of a run that has finished; "" where nothing is."""
    if len(steps["step"]) != STEPS:
        return f"it has {len(steps['step'])} steps"
    for column in ("data_wait_s", "h2d_s", "compute_s", "step_s"):
        if not (np.isfinite(steps[column]).all() and (steps[column] >= 0).all()):
            return f"{column} has values that are negative or not known"
    if not (steps["compute_s"] > 0).all():
        return "a step without compute"
    return ""
