"""Tools of the cases that start jobs and scripts: a job manager, the time left, and the processes and memory in use."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from vitprof.config import RunConfig
from vitprof.config.catalog import dataset_info
from vitprof.config.parts import why_not
from vitprof.config.strategies import STRATEGIES, strategy
from vitprof.errors import JobError, JobStopped
from vitprof.jobs.launcher import Launcher
from vitprof.jobs.manager import JobManager
from vitprof.selftest.cases import N_PHOTOS
from vitprof.store import RunStore, StoredRun
from vitprof.telemetry import Nvml, choose_gpu, visible_gpus

POLL_S = 0.05
SETTLE_S = 5.0
"""Seconds within which processes and device memory must be gone after a job has ended."""


class OutOfTime(JobError):
    """The time of a case is up."""


@dataclass
class Host:
    """Starts jobs and scripts for a case. The driver makes it; tests make it for the CPU or a simulated device."""

    device: str
    directory: Path
    """Directory for everything that is written; the caller removes it."""
    script: Callable[[RunConfig], str]
    """Makes a strategy's script (`export.code`, which this folder must not import)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the device's process reported (`child.facts`)."""
    stop: Callable[[], bool] = lambda: False
    ends_s: float = math.inf
    """The case's deadline, in seconds on the monotonic clock."""
    used_bytes: Callable[[str], float] | None = None
    """Reads the bytes in use on a device, by all programs together; None for NVML's figures."""
    _started: list[int] = field(default_factory=list)
    _manager: JobManager | None = None
    _nvml: Nvml | None = None

    @property
    def manager(self) -> JobManager:
        """Returns the job manager, opened when it is first needed."""
        if self._manager is None:
            store = RunStore(f"sqlite:///{self.directory / 'runs.sqlite'}")
            self._manager = JobManager(store, logs=self.directory, launcher=Launcher().warm())
        return self._manager

    def close(self) -> None:
        """Ends every job, and closes the store and NVML."""
        if self._manager is not None:
            self._manager.shutdown()
            self._manager.store.close()
        if self._nvml is not None:
            self._nvml.close()

    def check(self) -> None:
        """Raises `JobStopped` where the self-test was stopped, and `OutOfTime` after the deadline."""
        if self.stop():
            raise JobStopped("the selftest was stopped")
        if time.monotonic() > self.ends_s:
            raise OutOfTime("its time is up")

    def start(self, config: RunConfig) -> int:
        """Queues a job and returns its run id."""
        run_id = self.manager.submit(config)
        self._started.append(run_id)
        return run_id

    def end_jobs(self) -> None:
        """Ends the jobs that a case has left running."""
        for run_id in self._started:
            if self.manager.owns(run_id):
                self.manager.stop(run_id)
                self.manager.wait(run_id)
        self._started.clear()

    def wait(self, run_id: int) -> StoredRun:
        """Waits for a run to end and returns it. Raises `JobStopped` and `OutOfTime`."""
        while not self.manager.wait(run_id, POLL_S):
            self.check()
        return self.manager.store.run(run_id)

    def until(self, reached: Callable[[], bool], within_s: float = math.inf) -> bool:
        """Waits until `reached()` is true; returns whether that was within `within_s` seconds. Raises like `check`."""
        ends = time.monotonic() + within_s
        while not reached():
            self.check()
            if time.monotonic() > ends:
                return False
            time.sleep(POLL_S)
        return True

    def training(self, run_id: int) -> bool:
        """Returns whether the job is training, or has ended: there is nothing left to wait for."""
        return self.manager.store.run(run_id).stage == "training" or self.manager.wait(run_id, 0)

    def memory(self, device: str) -> float:
        """Returns the bytes of device memory that are in use, by all programs together; NaN where it is not known."""
        if self.used_bytes is not None:
            return self.used_bytes(device)
        if self._nvml is None:
            self._nvml = Nvml()
        shown = next((gpu for gpu in visible_gpus() if f"cuda:{gpu.index}" == device), None)
        gpu = None if shown is None else choose_gpu(self._nvml.gpus(), shown.uuid)
        return math.nan if gpu is None else self._nvml.read(gpu.uuid, ())["gpu_mem_used_bytes"]


def job_processes(host: Host) -> set[psutil.Process]:
    """Returns this process's descendants, without the one that forks jobs."""
    found = set(psutil.Process().children(recursive=True))
    return {process for process in found if not _forks_jobs(process)}


def _forks_jobs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        return "vitprof.jobs.fork_server" in process.cmdline() and parent is not None and parent.pid == os.getpid()
    return False


def settings_for(name: str) -> dict[str, Any]:
    """Returns the settings of a job with a strategy: photos where it can load them, workers and pinning where it takes
    them.
    """
    plan = strategy(name)
    info = dataset_info("photos", N_PHOTOS)
    settings: dict[str, Any] = {"dataset": "photos", "n_images": N_PHOTOS}
    if why_not(info, plan.combination(info)) is not None:
        info, settings = dataset_info("digits"), {"dataset": "digits"}
    taken = plan.knobs(plan.combination(info), info)
    wanted = {"workers": 2, "pin_memory": True, "slow_mb_s": 200.0, "slow_latency_ms": 1.0}
    return settings | {"strategy": name, "batch_size": 8} | {k: v for k, v in wanted.items() if k in taken}


NAMES = tuple(STRATEGIES)
