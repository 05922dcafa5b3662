"""The report on a self-test, on a simulated device or on a GPU: a result for each case, a sentence, JSON."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import psutil
from pydantic_core import to_jsonable_python

import vitprof
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.verdict.rendering import CAUSE_NAMES
from vitprof.config import gpu_findings
from vitprof.home import ensure_dir, home
from vitprof.program import program
from vitprof.recording.columns import SCHEMA_VERSION
from vitprof.telemetry.nvml import Nvml

FILE_NAME = "selftest-gpu.json"
READ = "docs/gpu.md"
VISIBILITY = {
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
}
"""Environment variables by which a GPU is seen."""
# LD_PRELOAD names files, whose paths may name the user
VARIABLES = {*gpu_findings.RECORDED, *VISIBILITY} - {"LD_PRELOAD"}
"""Environment variables that change what is measured. The others are left out: they can hold names and
secrets."""
A_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]+")

Status = Literal["passed", "failed", "not run", "disturbed"]


@dataclass(frozen=True)
class Result:
    """The result of a case: medians over its rounds, and whether each figure is right."""

    case: str
    """Name of the case."""
    what: str
    """How the job is slowed down, in words."""
    expected_ms: float
    """Milliseconds for each batch that the device must have waited because of the slowdown."""
    reported_ms: float
    """Milliseconds for each batch that the verdict attributes to the slowdown."""
    error_ms: float
    """Median over the rounds of what was reported minus what was expected."""
    tolerance_ms: float
    """Largest error_ms that is allowed."""
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
    """Rounds that were run."""
    retries: int
    """Rounds among them that were added because the case was not right until then."""
    cause_ok: bool
    """Whether most rounds named a right cause."""
    size_ok: bool
    """Whether error_ms is within tolerance_ms."""
    idle_ok: bool
    """Whether the idle share is right."""
    others_cores: float = math.nan
    """Cores that other programs took in the reference runs; NaN where not known."""
    failure: str = ""
    """Why the last round could not be compared, in one line; empty where it could."""

    @property
    def ok(self) -> bool:
        return self.cause_ok and self.size_ok and self.idle_ok and not self.failure

    @property
    def status(self) -> Status:
        if self.ok:
            return "passed"
        # what could not be compared at all is no matter of accuracy
        if self._is_disturbed and not self.failure:
            return "disturbed"
        return "failed"

    @property
    def _is_disturbed(self) -> bool:
        """Returns whether other programs took so much CPU that they may be why a case is not right."""
        return self.others_cores >= OTHERS_CORES

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok, "wrong": self.wrong}

    @property
    def blamed(self) -> str:
        """Returns the cause in words: "nothing" where none was named, the verdict's kind where it has no
        cause.
        """
        return CAUSE_NAMES.get(self.cause, self.cause) or "nothing"

    @property
    def wrong(self) -> str:
        """Returns what is wrong, in words; "" where nothing is."""
        if self.failure:
            return self.failure
        wrong = []
        if not self.cause_ok:
            names = [CAUSE_NAMES[name] for name in self.right]
            expected = " or ".join(dict.fromkeys(names)) or "none"
            has_no_cause = self.cause and self.cause not in CAUSE_NAMES
            verdict = f"was {self.cause}" if has_no_cause else f"blamed {self.blamed}"
            wrong.append(f"the verdict {verdict}, expected {expected}")
        if not self.size_ok:
            allowed = f"{self.tolerance_ms:.2f} ms are allowed"
            wrong.append(f"the size found was off by {self.error_ms:+.2f} ms, where {allowed}")
        if not self.idle_ok:
            shares = f"{self.idle_frac:.1%} instead of {self.true_idle_frac:.1%}"
            wrong.append(f"it reported an idle share of {shares}")
        if wrong and self._is_disturbed:
            others = f"other programs took {self.others_cores:.1f} cores meanwhile"
            wrong.append(f"{others}: repeat it on a quiet machine")
        return "; ".join(wrong)

    @property
    def words(self) -> str:
        """Returns the result in one line."""
        size = f"{self.reported_ms:.2f} of {self.expected_ms:.2f} ms"
        idle = f"idle {self.idle_frac:.1%} ({self.true_idle_frac:.1%})"
        words = f"{self.status.upper()}: {self.case}. {self.blamed}, {size}, {idle}"
        if self.retries:
            words += f", {self.retries} of {self.rounds} rounds retried"
        if self.wrong:
            words += f": {self.wrong}"
        return words


@dataclass(frozen=True)
class CaseOutcome:
    """The result of a case on a GPU."""

    status: Status
    """Whether it passed."""
    measured: str = ""
    """What was measured, in words; empty where nothing was."""
    wrong: str = ""
    """What is wrong, or why it was not run, in one line; empty where it passed."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Every figure behind it, as JSON can hold it; the names have the units."""
    case: str = ""
    """Name of the case."""
    expected: str = ""
    """What must be found, in words."""
    seconds: float = math.nan
    """How long it took."""

    @property
    def words(self) -> str:
        """Returns the outcome in one line."""
        measured = ": ".join(filter(None, (self.measured, self.wrong))) or "nothing"
        what = f"{self.status.upper()}: {self.case}"
        return f"{what}. Expected: {self.expected}. Measured: {measured}."

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


R_co = TypeVar("R_co", bound=Result | CaseOutcome, covariant=True)


@dataclass(frozen=True)
class SelftestReport(Generic[R_co]):
    """The results of a self-test, in the order of the cases."""

    results: Sequence[R_co]
    seconds: float
    asked: int
    """Number of cases requested; fewer have results where the self-test was stopped."""
    stopped: bool = False
    """Whether it was stopped before its end."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """On a GPU: device, software and processor; nothing that names the machine or its user."""

    @property
    def ok(self) -> bool:
        """Returns whether every requested case was run, none failed, and none is undecided because other
        programs ran. A case that cannot be run here is no failure.
        """
        return not self.stopped and len(self.results) == self.asked and not self._unclear

    @property
    def _unclear(self) -> list[R_co]:
        return self._with_status("failed") + self._with_status("disturbed")

    def _with_status(self, status: Status) -> list[R_co]:
        return [result for result in self.results if result.status == status]

    @property
    def sentence(self) -> str:
        """Returns the whole report in one line."""
        title = "self-test on the GPU" if self.machine else "self-test"
        passed = self._with_status("passed")
        not_run = self._with_status("not run")
        failed = self._with_status("failed")
        undecided = self._with_status("disturbed")
        stopped = self.stopped or len(self.results) < self.asked
        if stopped and not self.results:
            return f"{title} stopped before the first of {self.asked} cases had ended"
        of_undecided = f"undecided: {_cases(undecided)}"
        if stopped:
            n = f"{len(self.results)} of {self.asked}"
            sentence = f"{title} stopped after {n} cases: {len(passed)} passed"
            if failed:
                sentence += f"; failed: {_cases(failed)}"
            if undecided:
                sentence += f"; {of_undecided}"
            return sentence
        if failed:
            sentence = f"{title} failed: {len(failed)} of {self.asked}: {_cases(failed)}"
            if undecided:
                sentence += f"; {of_undecided}"
        elif undecided:
            n = f"{len(undecided)} of {self.asked}"
            sentence = f"{title} is undecided: {n}: {_cases(undecided)}"
        else:
            sentence = f"{title} passed: {len(passed)} of {self.asked}"
        if not_run:
            sentence += f"; not run: {', '.join(result.case for result in not_run)}"
        return sentence

    def to_dict(self) -> dict[str, Any]:
        values = {
            name: getattr(self, name) for name in ("ok", "stopped", "sentence", "seconds", "asked")
        }
        if self.machine:
            values |= {"advice": self.advice, "machine": self.machine}
        values["results"] = [result.to_dict() for result in self.results]
        converted: dict[str, Any] = plain(values)
        return converted

    @property
    def advice(self) -> str:
        """Returns what to read or do after a self-test on a GPU."""
        if self._with_status("failed"):
            return (
                f"Do not trust the figures of what failed on this machine yet. {READ} says for each case what a "
                "failure may mean and what to try; send the file in with a bug report."
            )
        return (
            f"Read {READ} next: what each case means, what is never measured, and what to look at first on a GPU. "
            f"Then press `See a starved GPU` on the Profile page, or run `{program()} run --strategy per-sample`."
        )

    def to_json(self) -> str:
        """Returns the text of the file for a bug report, without what names the machine, its user or the
        card.
        """
        values = {"schema_version": SCHEMA_VERSION} | self.to_dict()
        text = json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        for path, name in ((home(), "VITPROF_HOME"), (Path.home(), "~")):
            if len(path.parts) > 1:
                text = text.replace(str(path), name)
        return A_UUID.sub(r"\1-UUID", text)

    def write(self) -> Path:
        """Writes that file to `VITPROF_HOME`, in place of the last one, and returns its path.

        Raises `VitprofError`.
        """
        path = ensure_dir(home()) / FILE_NAME
        path.write_text(self.to_json(), encoding="utf-8")
        return path


def _cases(results: Sequence[Result | CaseOutcome]) -> str:
    return "; ".join(f"{result.case} ({result.wrong})" for result in results)


def judged(measured: str, wrong: Sequence[str], **figures: Any) -> CaseOutcome:
    """Returns the outcome of a case that was run: it passed if `wrong` is empty."""
    return CaseOutcome("failed" if wrong else "passed", measured, "; ".join(wrong), figures)


def plain(value: Any) -> Any:
    """Returns `value` as JSON can hold it, at any depth: None for NaN and infinities, lists for tuples,
    text keys.
    """
    return to_jsonable_python(value, inf_nan_mode="null", fallback=str)


def machine_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `facts` of the device's process, with what this process sees of the machine."""
    with Nvml() as nvml:
        gpus = [
            {
                "name": gpu.name,
                "slice": bool(gpu.slice_of),
                "memory_bytes": gpu.memory_bytes,
                "driver": gpu.driver,
            }
            for gpu in nvml.gpus()
        ]
    return {
        **facts,
        "vitprof": vitprof.__version__,
        "cores": psutil.cpu_count(logical=False),
        "memory_available_bytes": psutil.virtual_memory().available,
        "nvml_gpus": gpus,
        "variables": {name: os.environ[name] for name in sorted(VARIABLES) if name in os.environ},
    }
