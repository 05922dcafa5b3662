"""The cases of the self-test on a GPU, each run in a process of its own: one that hangs or crashes ends no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitprof.errors import DeviceError, JobStopped
from vitprof.experiments.trials import OnProgress, Progress, Stop, ignore, never
from vitprof.home import temporary_prefix
from vitprof.jobs.launcher import command, environment
from vitprof.selftest.report import Outcome, SelftestReport, machine_facts

CHILD = "vitprof.selftest.gpu.child"
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class GpuCase:
    """One thing that must be right on a GPU."""

    name: str
    expected: str
    """What must be found, in words."""
    limit_s: float
    """Seconds that it may take, opening the device included; then it is ended and has failed."""


GPU_CASES: tuple[GpuCase, ...] = (
    GpuCase(
        name="clock mapping",
        expected="1,000 marks inside their host brackets, within 50 µs; drift under 20 µs a second",
        limit_s=20,
    ),
    GpuCase(
        name="known idle",
        expected="0, 2 and 20 ms put into each stage and the transfer: right cause, 10% or 0.3 ms, idle within 1 point",
        limit_s=60,
    ),
    GpuCase(
        name="launch-bound",
        expected="300 tiny kernels are called launch-bound; kernel time within 5% of torch.profiler's union of kernels",
        limit_s=30,
    ),
    GpuCase(
        name="copies",
        expected="80% of the measured pinned bandwidth or more, at 38 MB",
        limit_s=20,
    ),
    GpuCase(
        name="own cost",
        expected="recording costs 2% or less of a step of `tiny`",
        limit_s=75,
    ),
    GpuCase(
        name="every strategy",
        expected="20 steps each in a process of its own, with workers and pinning where it has them",
        limit_s=95,
    ),
)
TOTAL_S = sum(case.limit_s for case in GPU_CASES)
"""The most seconds that the self-test takes."""


def run_gpu_selftest(
    cases: Sequence[GpuCase] = GPU_CASES,
    *,
    progress: OnProgress = ignore,
    ended: Callable[[Outcome], None] = lambda outcome: None,
    stop: Stop = never,
    child: Callable[[str, str], Sequence[str]] = lambda name, directory: command(CHILD, name, directory),
) -> SelftestReport[Outcome]:
    """Runs `cases` on the first GPU and returns the report; calls `ended` with each outcome at once.

    A case that takes longer than its limit or ends its process has failed; the others still run. Once `stop()` returns
    true, the report has what was run until then. Everything is written to a temporary directory, except missing data
    sets, which are made in `VITPROF_HOME`. Tests pass other commands as `child`.

    Raises `DeviceError` where there is no GPU that PyTorch can use.
    """
    began = time.monotonic()
    outcomes: list[Outcome] = []
    facts: dict[str, Any] = {}
    left_s = sum(case.limit_s for case in cases)
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("selftest-gpu"), ignore_cleanup_errors=True) as directory:
        for case in cases:
            begun = time.monotonic()

            def report(case: GpuCase = case, begun: float = begun, left_s: float = left_s) -> bool:
                left = max(left_s - (time.monotonic() - begun), 0.0)
                progress(Progress(case.name, len(outcomes), len(cases), len(outcomes) / len(cases), left))
                return stop()

            try:
                message = _run(child(case.name, directory), Path(directory) / "child.log", case.limit_s, report)
            except JobStopped:
                break
            if "error" in message and not facts:
                raise DeviceError(message["error"])
            facts |= message.get("facts", {})
            outcome = Outcome(**message.get("outcome", {"status": "failed", "wrong": message.get("error", "")}))
            outcome = replace(outcome, case=case.name, expected=case.expected, seconds=time.monotonic() - begun)
            outcomes.append(outcome)
            ended(outcome)
            left_s -= case.limit_s
    seconds = time.monotonic() - began
    return SelftestReport(tuple(outcomes), seconds, len(cases), len(outcomes) < len(cases), machine_facts(facts))


def _run(arguments: Sequence[str], log: Path, limit_s: float, report: Callable[[], bool]) -> dict[str, Any]:
    """Runs the process of a case and returns its message, or why there is none as {"error": ...}.

    Raises `JobStopped` once `report()` returns true.
    """
    answer, ends_s = log.with_suffix(".json"), time.monotonic() + limit_s
    with log.open("wb") as errors, answer.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends it
            env=environment(),
        )
    try:
        while process.poll() is None:
            if report():
                raise JobStopped("the selftest was stopped")
            if time.monotonic() > ends_s:
                return {"error": f"it took longer than {limit_s:.0f} s"}
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    with contextlib.suppress(ValueError):
        message: dict[str, Any] = json.loads(answer.read_bytes())
        return message
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return {"error": f"its process ended: exit status {process.returncode}{f', {last[0]}' if last else ''}"}
