"""Waiting for a core, as the kernel counts it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitprof.telemetry.runqueue import RunQueue


def thread(proc: Path, pid: int, tid: int, waited_ns: int | str) -> None:
    task = proc / str(pid) / "task" / str(tid)
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"123456 {waited_ns} 7\n")


def test_what_all_threads_waited_since_the_last_sample(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    thread(tmp_path, 1, 1, 5_000_000_000)
    assert math.isnan(queue.sample(10.0, [1]))
    thread(tmp_path, 1, 1, 5_250_000_000)
    thread(tmp_path, 1, 2, 9_000_000_000)  # a new thread: what it waited before is not of this interval
    assert queue.sample(11.0, [1, 77]) == pytest.approx(25)
    thread(tmp_path, 1, 1, 5_750_000_000)
    thread(tmp_path, 1, 2, 9_500_000_000)
    assert queue.sample(13.0, [1]) == pytest.approx(50)
    assert queue.sample(14.0, [1]) == 0


def test_a_clock_that_stands_still_and_processes_that_are_gone(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    thread(tmp_path, 1, 1, 0)
    queue.sample(1.0, [1])
    assert math.isnan(queue.sample(1.0, [1]))
    assert math.isnan(queue.sample(2.0, [2]))


@pytest.mark.parametrize("text", ["", "x", "12"])
def test_a_system_that_does_not_count(tmp_path: Path, text: str) -> None:
    queue = RunQueue(tmp_path)
    thread(tmp_path, 1, 1, 0)
    (tmp_path / "1" / "task" / "1" / "schedstat").write_text(text)
    for now in (1.0, 2.0):
        assert math.isnan(queue.sample(now, [1]))


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system keeps no such count")
def test_threads_that_fight_for_a_core_wait() -> None:
    """Two that compute on one core: each waits about half of the time. One that sleeps waits for nothing."""
    core = min(os.sched_getaffinity(0))
    script = f"import os, sys\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\n"
    busy = [subprocess.Popen([sys.executable, "-c", f"{script}while True: pass"], stdout=-1) for _ in range(2)]
    idle = subprocess.Popen([sys.executable, "-c", f"{script}sys.stdin.read()"], stdin=-1, stdout=-1)
    try:
        for process in (*busy, idle):
            assert process.stdout is not None
            process.stdout.readline()
        queues = [RunQueue() for _ in range(3)]
        for queue, process in zip(queues, (*busy, idle), strict=True):
            queue.sample(time.perf_counter(), [process.pid])
        deadline = time.perf_counter() + 20
        waited = [0.0] * 3
        while min(waited[:2]) < 1 and time.perf_counter() < deadline:
            time.sleep(0.05)
            waited = [
                w + q.sample(time.perf_counter(), [p.pid])
                for w, q, p in zip(waited, queues, (*busy, idle), strict=True)
            ]
        assert min(waited[:2]) >= 1
        assert waited[2] < min(waited[:2])
    finally:
        for process in (*busy, idle):
            process.kill()
            process.communicate()
