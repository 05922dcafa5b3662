"""Nothing left: a job that ends early must leave no process and no device memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import psutil

from vitprof.config import RunConfig
from vitprof.selftest.gpu.host import SETTLE_S, Host, job_processes
from vitprof.selftest.gpu.outcome import Outcome, judged
from vitprof.store import StoredRun

MOST_BYTES = 64 << 20
"""The most bytes of device memory that may stay in use after a job has ended."""
LONG: dict[str, Any] = {"strategy": "workers", "workers": 2, "seconds": 60, "evaluate": False}
"""A job far longer than the case, with worker processes, which must end with their job."""
TOO_LARGE: dict[str, Any] = {
    "strategy": "memory",
    "model": "b/16",
    "image_size": 224,
    "batch_size": 8192,
    "steps": 10,
    "evaluate": False,
}
"""A job that needs more memory than any GPU has: activations of ViT-B/16 take about 0.1 GB a sample, here 0.8 TB."""


def nothing_left(host: Host) -> Outcome:
    """Stops a job, kills one, lets one run out of device memory (on CUDA), and checks each time what is left."""
    wrong, told = [], []
    ways: list[tuple[str, Callable[[Host], tuple[StoredRun, str]]]] = [("stop", _stopped), ("kill", _killed)]
    if host.device.startswith("cuda"):
        ways.append(("out of memory", _out_of_memory))
    memory_known = True
    for name, end in ways:
        processes, used = job_processes(host), host.memory(host.device)
        run, why = end(host)
        left = _left(host, processes)
        said = [why] if why else []
        if left:
            said.append(f"{len(left)} processes were left")
        if math.isnan(used):
            memory_known = False
        elif not host.until(lambda used=used: host.memory(host.device) - used <= MOST_BYTES, SETTLE_S):  # type: ignore[misc]
            said.append(f"{(host.memory(host.device) - used) / 1e6:.0f} MB of device memory were left")
        told.append(f"{name}: {run.status}{', nothing left' if not said else ''}")
        wrong += [f"{name}: {what}" for what in said]
    if not memory_known:
        told.append("device memory was not checked: NVML does not report it")
    return judged("; ".join(told), wrong, ways=[name for name, _ in ways], memory_looked_at=memory_known)


def _begun(host: Host) -> tuple[int, set[psutil.Process]]:
    """Starts a job; returns its run id and its processes once it is training."""
    before = job_processes(host)
    run_id = host.start(RunConfig(device=host.device, **LONG))
    host.until(lambda: host.training(run_id))
    return run_id, job_processes(host) - before


def _stopped(host: Host) -> tuple[StoredRun, str]:
    run_id, _ = _begun(host)
    host.manager.stop(run_id)
    run = host.wait(run_id)
    return run, "" if run.status == "stopped" else f"the run is called {run.status} ({run.error})"


def _killed(host: Host) -> tuple[StoredRun, str]:
    run_id, processes = _begun(host)
    ids = {process.pid for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.ppid() not in ids:  # the job itself, not its workers
                process.kill()
    run = host.wait(run_id)
    return run, "" if run.status == "failed" else f"the run is called {run.status}"


def _out_of_memory(host: Host) -> tuple[StoredRun, str]:
    run = host.wait(host.start(RunConfig(device=host.device, **TOO_LARGE)))
    if run.status == "failed" and "memory" in (run.error or "").lower():
        return run, ""
    return run, f"the run is called {run.status} ({run.error})"


def _left(host: Host, before: set[psutil.Process]) -> set[psutil.Process]:
    """Returns the processes that are not among `before` and do not end within `SETTLE_S`."""
    left: set[psutil.Process] = set()

    def gone() -> bool:
        left.clear()
        left.update(process for process in job_processes(host) - before if process.is_running())
        return not left

    host.until(gone, SETTLE_S)
    return left
