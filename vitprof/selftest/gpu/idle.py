"""Known idle: the device is busy for a known time in each step, and a known wait is put into each stage of loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from vitprof.analysis.timing.steady import steady_state
from vitprof.recording.columns import DELAYED_STAGES
from vitprof.selftest.cases import expected_ms, idle_frac, tolerance_idle_frac, tolerance_ms
from vitprof.selftest.gpu.bench import Bench, Recorded, Spinning
from vitprof.selftest.report import Outcome, judged

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


@dataclass
class Seen:
    """What was measured with one wait, a value for each round; times in ms, shares 0..1."""

    stage: str
    """The stage that waits; empty where there is no wait."""
    wait_ms: float
    causes: list[str] = field(default_factory=list)
    expected_ms: list[float] = field(default_factory=list)
    error_ms: list[float] = field(default_factory=list)
    idle_error_frac: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)
    """Compute of a step by the device's marks; it should be `COMPUTE_MS`."""

    @property
    def name(self) -> str:
        return f"{self.wait_ms:g} ms in {self.stage}" if self.stage else "no wait"

    @property
    def wrong(self) -> str:
        """Returns what is wrong, in words; "" where nothing is."""
        problems: list[str] = []
        others = [cause for cause in self.causes if cause != self.stage]
        if self.stage and 2 * len(others) >= len(self.causes):
            problems.append(f"the verdict named {others[-1] or 'no cause'}")
        error, allowed = median(self.error_ms), tolerance_ms(median(self.expected_ms))
        if not abs(error) <= allowed:
            problems.append(f"its size is off by {error:+.2f} ms, and {allowed:.2f} ms is allowed")
        idle = median(self.idle_error_frac)
        if not abs(idle) <= tolerance_idle_frac(median(self.step_ms)):
            problems.append(f"the idle share is off by {idle * 100:+.1f} points")
        compute = median(self.compute_ms)
        if problems and not 0.9 * COMPUTE_MS <= compute <= 1.1 * COMPUTE_MS:  # a laptop that saves power, or no cooling
            problems.append(f"the device's clock changed: {COMPUTE_MS:g} ms of work took {compute:.2f} ms")
        return f"{self.name}: {', '.join(problems)}" if problems else ""


def known_idle(bench: Bench) -> Outcome:
    """Trains with no wait, then with each wait in each stage, and compares what vitprof reports with the wait."""
    seen = [Seen("", 0.0), *(Seen(stage, wait) for stage in DELAYED_STAGES for wait in WAITS_MS)]
    for _ in range(ROUNDS):
        again = [one for one in seen if not one.error_ms or one.wrong]
        if not again:
            break
        reference = _trained(bench, "")
        for one in again:
            _look(bench, one, reference)
    wrong = [one.wrong for one in seen if one.wrong]
    error = max((abs(median(one.error_ms)) for one in seen), default=0.0)
    idle = max(abs(median(one.idle_error_frac)) for one in seen)
    return judged(
        f"{len(seen) - len(wrong)} of {len(seen)} waits right; sizes within {error:.2f} ms, "
        f"idle shares within {idle * 100:.1f} points",
        wrong,
        compute_ms=COMPUTE_MS,
        waits={
            one.name: {
                "causes": one.causes,
                "expected_ms": one.expected_ms,
                "error_ms": one.error_ms,
                "idle_error_frac": one.idle_error_frac,
                "step_ms": one.step_ms,
                "compute_ms": one.compute_ms,
            }
            for one in seen
        },
    )


def _trained(bench: Bench, inject: str) -> Recorded:
    ask_s = bench.spin(COMPUTE_MS / 1e3)
    settings = JOB | ({"inject": inject} if inject else {})
    return bench.run(trains=lambda config, device: Spinning(device, ask_s), **settings)


def _fetched_ms(recorded: Recorded) -> list[float]:
    """Returns for each steady step the ms from the device's start of the previous step to the arrival of its batch."""
    steps = recorded.steps
    fetched = steps["t_start_s"] + steps["data_wait_s"]
    since_s = (fetched[1:] - steps["compute_start_s"][:-1])[steady_state(steps)[1:]]
    return [float(seconds) * 1e3 for seconds in since_s]


def _slept_ms(bench: Bench, wait_ms: float) -> float:
    """Returns how many ms a sleep of `wait_ms` really takes in this thread, since waking up takes time too.

    It is not measured in another thread beside the job, which would also wait for Python's lock.
    """
    took = []
    for _ in range(LATE_SLEEPS):
        began = bench.clock()
        bench.sleep(wait_ms / 1e3)
        took.append(bench.clock() - began)
    return fmean(took) * 1e3


def _look(bench: Bench, one: Seen, reference: Recorded) -> None:
    if not one.stage:
        recorded, wait_ms = reference, 0.0
    else:
        before_ms = _slept_ms(bench, one.wait_ms)
        recorded = _trained(bench, f"{one.stage}:{one.wait_ms:g}")
        wait_ms = (before_ms + _slept_ms(bench, one.wait_ms)) / 2
    verdict, before = recorded.verdict(), reference.verdict()
    # step by step: a fetch that is late now and then must not change what is expected of the other steps
    expected = fmean(expected_ms(wait_ms, fetch, COMPUTE_MS) for fetch in _fetched_ms(reference))
    stage = one.stage
    costs = [{share.name: share.exposed_ms for share in v.shares}.get(stage, 0.0) for v in (verdict, before)]
    one.causes.append(verdict.cause)
    one.expected_ms.append(expected)
    one.error_ms.append(costs[0] - costs[1] - expected)
    one.idle_error_frac.append(recorded.idle_frac - idle_frac(COMPUTE_MS, recorded.step_ms))
    one.step_ms.append(recorded.step_ms)
    one.compute_ms.append(recorded.steady("compute_s") * 1e3)
