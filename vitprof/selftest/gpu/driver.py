"""The cases of the self-test on a GPU, each run in a process of its own: one that hangs or crashes ends
no other.

That process is `python -m vitprof.selftest.gpu.driver CASE DIRECTORY`. It writes one JSON object to
standard output: {"facts": ..., "outcome": ...}, or {"error": ...} without a GPU. What libraries print
goes to standard error. It exits when its standard input ends, so that it never outlives its parent.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitprof.choices import by_name
from vitprof.errors import DeviceError, JobStopped, VitprofError, one_line
from vitprof.experiments.trials import OnProgress, Progress, Stop, ignore, never
from vitprof.home import temporary_prefix
from vitprof.jobs.runners import command, environment
from vitprof.program import program
from vitprof.selftest.gpu import device_cases, job_cases
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.report import CaseOutcome, SelftestReport, Status, machine_facts, plain

CASE_EVERY_S = 0.1
DEVICE = "cuda:0"
PRIVATE = ("hostname", "gpu_uuid")
"""Facts that name a machine: not for a bug report."""


@dataclass(frozen=True)
class GpuCase:
    """One thing that must be right on a GPU."""

    name: str
    expected: str
    """What must be found, in words."""
    limit_s: float
    """Seconds that it may take, opening the device included; then it is ended and has failed."""
    run: Callable[[Bench], CaseOutcome]


GPU_CASES = by_name(
    GpuCase(
        "clock mapping",
        "1,000 marks inside their host brackets, within 50 µs; drift under 20 µs a second",
        20,
        device_cases.clock_mapping,
    ),
    GpuCase(
        "known idle",
        "0, 2 and 20 ms put into each stage and the transfer: right cause; 10% or 0.3 ms, idle 1 point or 0.3 ms",
        60,
        job_cases.known_idle,
    ),
    GpuCase(
        "launch-bound",
        "300 tiny kernels are called launch-bound; kernel time within 5% of torch.profiler's union of kernels",
        30,
        device_cases.launch_bound,
    ),
    GpuCase(
        "copies",
        "80% of the measured pinned bandwidth or more, at 38 MB",
        20,
        device_cases.copy_bandwidth,
    ),
    GpuCase("own cost", "recording costs 2% or less of a step of `tiny`", 75, job_cases.own_cost),
    GpuCase(
        "every strategy",
        "20 steps each in a process of its own, with workers and pinning where it has them",
        95,
        job_cases.every_strategy,
    ),
)
TOTAL_S = sum(case.limit_s for case in GPU_CASES.values())


def run_gpu_selftest(
    cases: Sequence[GpuCase] = tuple(GPU_CASES.values()),
    *,
    progress: OnProgress = ignore,
    ended: Callable[[CaseOutcome], None] = lambda outcome: None,
    stop: Stop = never,
    child: Callable[[str, str], Sequence[str]] = lambda name, directory: command(
        __name__, name, directory
    ),
) -> SelftestReport[CaseOutcome]:
    """Runs `cases` on the first GPU and returns the report; calls `ended` with each outcome at once.

    A case that takes longer than its limit or ends its process has failed; the others still run. Once
    `stop()` returns true, the report has what was run until then. Everything but missing data sets is
    written to a temporary directory. Tests pass other commands as `child`. Raises `DeviceError` where
    there is no GPU that PyTorch can use.
    """
    began = time.monotonic()
    outcomes: list[CaseOutcome] = []
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(
        prefix=temporary_prefix("selftest-gpu"), ignore_cleanup_errors=True
    ) as directory:
        for case in cases:
            begun = time.monotonic()

            def report(name: str = case.name) -> bool:
                progress(Progress(name, len(outcomes), len(cases), len(outcomes) / len(cases)))
                return stop()

            log = Path(directory) / "child.log"
            try:
                message = _run(child(case.name, directory), log, case.limit_s, report)
            except JobStopped:
                break
            # without facts of a device no case has opened one yet
            if "error" in message and not facts:
                raise DeviceError(message["error"])
            facts |= message.get("facts", {})
            failed = {"status": "failed", "wrong": message.get("error", "")}
            outcome = replace(
                CaseOutcome(**message.get("outcome", failed)),
                case=case.name,
                expected=case.expected,
                seconds=time.monotonic() - begun,
            )
            outcomes.append(outcome)
            ended(outcome)
    return SelftestReport(
        results=tuple(outcomes),
        seconds=time.monotonic() - began,
        asked=len(cases),
        stopped=len(outcomes) < len(cases),
        machine=machine_facts(facts),
    )


def _run(
    arguments: Sequence[str], log: Path, limit_s: float, report: Callable[[], bool]
) -> dict[str, Any]:
    """Runs the process of a case and returns its message, or why there is none as {"error": ...}."""
    answer = log.with_suffix(".json")
    ends_s = time.monotonic() + limit_s
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
        while not report():  # at least once, however soon the process ends
            if process.poll() is not None:
                break
            if time.monotonic() > ends_s:
                return {"error": f"it took longer than {limit_s:.0f} s"}
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(CASE_EVERY_S)
        else:
            raise JobStopped("the selftest was stopped")
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    with contextlib.suppress(ValueError):
        return dict(json.loads(answer.read_bytes()))
    error = f"its process ended: exit status {process.returncode}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if lines:
        error += f", {lines[-1]}"
    return {"error": error}


def open_bench(name: str, directory: Path) -> Bench:
    """Returns the bench with a CUDA device. Raises `DeviceError`."""
    import torch

    from vitprof.measure.devices import open_device
    from vitprof.measure.devices.cuda_findings import cuda_here

    if not cuda_here():
        raise DeviceError(
            f"the self-test on the GPU needs an NVIDIA GPU that PyTorch can use, and this one ({torch.__version__}) "
            f"sees none; `{program()} doctor` says more, and the self-test without --gpu needs none"
        )
    return Bench(
        open_device(name, time.perf_counter), kernels_s=device_cases.kernels_s, directory=directory
    )


def device_facts(bench: Bench) -> dict[str, Any]:
    """Returns facts about device and software, without what names the machine; and how many GPUs PyTorch sees."""
    import torch

    from vitprof.engine.train import describe

    facts = {
        **describe(),
        **bench.device.environment(),
        "device": bench.device.name,
        "gpus": torch.cuda.device_count(),
    }
    if bench.device.torch_device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(bench.device.torch_device)
        facts |= {"capability": f"{major}.{minor}", "arch_list": torch.cuda.get_arch_list()}
    return {name: value for name, value in facts.items() if name not in PRIVATE}


def run_case(name: str, bench: Bench) -> CaseOutcome:
    """Runs a case and returns its outcome: not run with too little memory, failed where it raises any
    other `Exception`.
    """
    from vitprof.measure.devices.cuda_findings import is_out_of_memory

    try:
        return GPU_CASES[name].run(bench)
    except Exception as error:
        status: Status = "not run" if is_out_of_memory(error) else "failed"
        return CaseOutcome(status, wrong=_printed(error))


def _printed(error: Exception) -> str:
    """Returns an error in one line; prints the traceback of a defect, where the program's output goes."""
    if not isinstance(error, VitprofError):
        traceback.print_exception(error)
    return one_line(error)


def main() -> None:
    """Opens the device and runs the case that the command line names."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_input, name="vitprof-stdin", daemon=True).start()
    name, directory = sys.argv[1:]
    try:
        bench = open_bench(DEVICE, Path(directory))
        message: dict[str, Any] = {
            "facts": device_facts(bench),
            "outcome": run_case(name, bench).to_dict(),
        }
    except Exception as error:
        message = {"error": _printed(error)}
    json.dump(plain(message), channel, allow_nan=False)
    channel.flush()
    os._exit(0)  # tearing down PyTorch takes a second


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
