"""A real job that is stopped, and one whose worker waits for a file that does not answer: told apart as it happens."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine_fixtures import wait_until
from tests.jobs import stalling
from vitprof.analysis.timing.steady import stops_of
from vitprof.config.own_script import own_config
from vitprof.jobs import supervisor
from vitprof.jobs.command import CommandRunner
from vitprof.jobs.supervisor import JobRecorder
from vitprof.store import RunStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and its states of processes")
STALL_S = 1.5
"""Longer than all of the job's own steps together."""


class Job:
    """The script under way, recorded as a watched one is."""

    def __init__(self, store: RunStore, how: str) -> None:
        self._store = store
        self.id = store.create_run(own_config("stalls", telemetry_hz=20.0))
        self.runner = CommandRunner([sys.executable, "-m", "tests.jobs.stalling", how])
        recorder = JobRecorder(store, self.id, threading.Event(), start=lambda: self.runner)
        self._thread = threading.Thread(target=recorder.run, name="vitprof-recorder")
        self._thread.start()

    def after_step(self, number: int) -> None:
        wait_until(lambda: self._store.n_steps(self.id) > number, f"step {number}")

    def ended(self) -> Any:
        self._thread.join()
        return self._store.run(self.id)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "OWN_FLUSH_EVERY_S", 0.02)


@pytest.mark.measured
@pytest.mark.parametrize(("whom", "kind"), [("main", "stopped"), ("worker", "worker")])
def test_a_job_that_was_stopped_was_not_starved(store: RunStore, whom: str, kind: str) -> None:
    job = Job(store, whom)
    job.after_step(20)
    process = psutil.Process(
        job.runner.pid if whom == "main" else int(store.run(job.id).environment["worker_pid"])
    )
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the stop")
    time.sleep(STALL_S)  # the fault itself
    process.send_signal(signal.SIGCONT)
    run, steps = job.ended(), store.steps(job.id)
    assert run.status == "done"
    assert [stop.kind for stop in stops_of(run.facts)] == [kind]
    assert (
        0.2 * STALL_S < stops_of(run.facts)[0].seconds < 2 * STALL_S
    )  # exact in tests/telemetry/test_sampler.py
    stalled = stalling.STALLS_AT
    assert steps["step_s"][stalled] > 0.9 * STALL_S
    assert (steps["warmup"][stalled], steps["warmup"][5:].sum() <= 2) == (1, True)
    (notice,) = run.notices
    assert "was stopped (by a signal or a debugger) are left out" in notice
    verdict, others = run.verdict, steps["warmup"] == 0
    share = steps["data_wait_s"][others].sum() / steps["step_s"][others].sum()
    assert verdict.idle_frac == pytest.approx(share, abs=0.02), "that of the other steps"
    assert verdict.single_event is None or verdict.single_event.step != stalled


@pytest.mark.measured
def test_a_worker_that_waits_for_its_file_is_starvation(store: RunStore, tmp_path: Path) -> None:
    """The read itself stands still for as long as a stop would: the kernel, not a wait in Python."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    job = Job(store, str(fifo))
    job.after_step(stalling.STALLS_AT - 1)
    with fifo.open("wb") as file:
        time.sleep(STALL_S)
        file.write(b"at last")
    run, steps = job.ended(), store.steps(job.id)
    assert (run.status, run.notices, stops_of(run.facts)) == ("done", (), ())
    assert steps["data_wait_s"][stalling.STALLS_AT] > 0.9 * STALL_S
    assert not steps["warmup"][5:].any()
    assert run.verdict.idle_frac > 0.3
