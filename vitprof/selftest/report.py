"""The results of the cases, and the report on all of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis.arrays import median
from vitprof.analysis.verdict.wording import CAUSE_NAMES
from vitprof.recording.columns import json_number
from vitprof.selftest.arithmetic import expected_ms, tolerance_idle_frac, tolerance_ms
from vitprof.selftest.cases import Case
from vitprof.selftest.observing import Observed


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


@dataclass(frozen=True)
class Result:
    """The result of a case: medians over its rounds, and whether each figure is right."""

    case: str
    what: str
    expected_ms: float
    """Milliseconds for each batch that the device must have waited because of the slowdown."""
    reported_ms: float
    """Milliseconds for each batch that the verdict attributes to the slowdown."""
    error_ms: float
    """Median over the rounds of what was reported minus what was expected."""
    tolerance_ms: float
    cause: str
    """The cause that most rounds named."""
    right: tuple[str, ...]
    """Causes that count as right; empty: none may be named as costing anything."""
    idle_frac: float
    """The device's idle share as the summary states it."""
    true_idle_frac: float
    """The device's idle share by arithmetic."""
    idle_error_frac: float
    """Median over the rounds of the idle share stated minus the true one."""
    rounds: int
    retries: int
    """Rounds among them that were added because the case was not right until then."""
    cause_ok: bool
    size_ok: bool
    idle_ok: bool
    failure: str = ""
    """Why the last round could not be compared, in one line; empty where it could."""

    @property
    def ok(self) -> bool:
        """Returns whether the case ran, and cause, size and idle share are right."""
        return self.cause_ok and self.size_ok and self.idle_ok and not self.failure

    @property
    def blamed(self) -> str:
        """Returns the cause in words: "nothing" where none was named, the verdict's kind where it has no cause."""
        return CAUSE_NAMES.get(self.cause, self.cause) or "nothing"

    @property
    def wrong(self) -> str:
        """Returns what is wrong, in words; "" where nothing is."""
        if self.failure:
            return self.failure
        right = " or ".join(dict.fromkeys(CAUSE_NAMES[name] for name in self.right)) or "none"
        verdict = f"was {self.cause}" if self.cause and self.cause not in CAUSE_NAMES else f"blamed {self.blamed}"
        named = f"the verdict {verdict}, expected {right}"
        size = f"it reported {self.reported_ms:.2f} ms of the {self.expected_ms:.2f} ms added"
        idle = f"it reported an idle share of {self.idle_frac:.1%} instead of {self.true_idle_frac:.1%}"
        told = ((self.cause_ok, named), (self.size_ok, size), (self.idle_ok, idle))
        return "; ".join(words for fine, words in told if not fine)


@dataclass(frozen=True)
class SelftestReport:
    """The results of a self-test, in the order of the cases."""

    results: tuple[Result, ...]
    seconds: float
    asked: int
    """Number of cases requested; fewer have results where the self-test was stopped."""
    stopped: bool = False
    """Whether it was stopped before its end."""

    @property
    def ok(self) -> bool:
        """Returns whether every requested case ran and is right."""
        return not self.stopped and len(self.results) == self.asked and all(result.ok for result in self.results)

    @property
    def sentence(self) -> str:
        """Returns the whole report in one line."""
        right = sum(result.ok for result in self.results)
        if self.stopped or len(self.results) < self.asked:
            if not self.results:
                return f"selftest stopped before the first of {self.asked} cases had ended"
            return f"selftest stopped after {len(self.results)} of {self.asked} cases: {right} passed"
        if self.ok:
            return f"selftest passed: {right} of {self.asked}"
        wrong = "; ".join(f"{result.case} ({result.wrong})" for result in self.results if not result.ok)
        return f"selftest failed: {self.asked - right} of {self.asked}: {wrong}"

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; NaN becomes None."""
        results = [
            {name: json_number(v) if isinstance(v, float) else v for name, v in dataclasses.asdict(result).items()}
            | {"right": list(result.right), "ok": result.ok, "wrong": result.wrong}
            for result in self.results
        ]
        return {
            "ok": self.ok,
            "stopped": self.stopped,
            "sentence": self.sentence,
            "seconds": self.seconds,
            "asked": self.asked,
            "results": results,
        }


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
        named = [name for name in case.right if name == slowed.cause or name in slowed.signatures]
        reported = _contention_ms(slowed) - _contention_ms(reference)
    elif case.launch_ms:
        expected = max(0.0, slowed.launching_ms - case.compute_ms)
        named = [slowed.cause] if slowed.cause in case.right else []
        reported = slowed.launch_ms - reference.launch_ms
    else:
        expected = expected_ms(wait_ms, reference.fetch_ms, case.compute_ms, case.makers)
        named = [slowed.cause] if slowed.cause in case.right else []
        reported = slowed.exposed_ms.get(case.part, 0.0) - reference.exposed_ms.get(case.part, 0.0)
    # A run that is not input-bound names no cause: the largest part of almost nothing does not count as one.
    free = slowed.kind == "not input-bound"
    return Round(
        expected_ms=expected,
        reported_ms=reported,
        cause=named[0] if named else "" if free else slowed.cause or slowed.kind,
        cause_ok=free if case.hidden else bool(named),
        idle_frac=slowed.idle_frac,
        true_idle_frac=slowed.true_idle_frac,
        step_ms=slowed.step_ms,
    )


def _contention_ms(observed: Observed) -> float:
    return observed.cause_ms if observed.cause == "cpu_contention" else 0.0


def case_result(case: Case, rounds: Sequence[Round], *, retries: int = 0, failure: str = "") -> Result:
    """Returns the result of `case`: medians over `rounds`, and the cause that most of them named.

    `failure` says why the last round could not be compared; "" where it could.
    """
    names = Counter(r.cause for r in rounds)
    expected = median(np.array([r.expected_ms for r in rounds]))
    error = median(np.array([r.reported_ms - r.expected_ms for r in rounds]))
    step = median(np.array([r.step_ms for r in rounds]))
    idle_error = median(np.array([r.idle_frac - r.true_idle_frac for r in rounds]))
    return Result(
        case=case.name,
        what=case.what,
        expected_ms=expected,
        reported_ms=median(np.array([r.reported_ms for r in rounds])),
        error_ms=error,
        tolerance_ms=tolerance_ms(expected),
        cause=names.most_common(1)[0][0] if names else "",
        right=case.right,
        idle_frac=median(np.array([r.idle_frac for r in rounds])),
        true_idle_frac=median(np.array([r.true_idle_frac for r in rounds])),
        idle_error_frac=idle_error,
        rounds=len(rounds),
        retries=retries,
        cause_ok=2 * sum(r.cause_ok for r in rounds) > len(rounds),
        size_ok=abs(error) <= tolerance_ms(expected),
        idle_ok=abs(idle_error) <= tolerance_idle_frac(step),
        failure=failure,
    )
