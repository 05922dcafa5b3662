"""What is read from /proc, beside psutil's figures of the same processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.telemetry.test_processes import until
from vitprof.telemetry import processes
from vitprof.telemetry.processes import ProcessTree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
NAMED = "a) R 1 (b"
"""A program's name that looks like the fields after it."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    program = f"import time; open('/proc/self/comm', 'w').write({NAMED!r}); kept = bytearray(30 << 20); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        yield process
        process.kill()


def test_figures_are_those_of_psutil(child: subprocess.Popen[bytes]) -> None:
    process = psutil.Process(child.pid)
    until(lambda: process.name() == NAMED and process.memory_info().rss > 30 << 20)
    times, figures = process.cpu_times(), processes.process_figures(child.pid)
    assert figures.cpu_s == pytest.approx(times.user + times.system, abs=0.02)
    assert figures.rss_bytes == pytest.approx(process.memory_info().rss, rel=0.02)
    assert not figures.stopped
    child.send_signal(signal.SIGSTOP)
    until(lambda: processes.process_figures(child.pid).stopped)
    child.send_signal(signal.SIGCONT)
    until(lambda: not processes.process_figures(child.pid).stopped)


def test_time_of_all_cores_is_that_of_psutil() -> None:
    before = psutil.cpu_times()
    total, idle = processes.machine_ticks()
    after = psutil.cpu_times()
    unit = os.sysconf("SC_CLK_TCK")
    for found, of in (
        (total / unit, lambda times: sum(times[:8])),
        (idle / unit, lambda times: times.idle + times.iowait),
    ):
        assert of(before) <= found + 0.01
        assert found <= of(after) + 0.01


def test_one_that_has_ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert processes.process_figures(child.pid).rss_bytes == 0
    child.wait()
    with pytest.raises(OSError, match=str(child.pid)):
        processes.process_figures(child.pid)
    assert not list(processes.descendants(child.pid))


def test_children_of_every_thread_and_theirs() -> None:
    started: list[subprocess.Popen[bytes]] = []
    waits = "import sys; print(flush=True); sys.stdin.read()"
    family = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    ended = threading.Event()

    def start() -> None:
        started.append(subprocess.Popen([sys.executable, "-c", family], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        ended.wait(20)

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: bool(started))
    child = started[0]
    assert child.stdout is not None
    child.stdout.readline()  # the grandchild runs
    found = set(processes.descendants(os.getpid()))
    assert found == {process.pid for process in psutil.Process().children(recursive=True)}
    assert len(found & {child.pid, *processes.descendants(child.pid)}) == 2
    ended.set()
    thread.join()
    child.communicate()


def test_a_kernel_that_lists_no_children(monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]) -> None:
    with_lists, without = ProcessTree(os.getpid()), ProcessTree(os.getpid())
    with_lists.sample(0.0)
    monkeypatch.setattr(processes, "lists_children", lambda: False)
    without.sample(0.0)
    assert child.pid in without.pids
    assert without.pids == with_lists.pids


def test_a_system_without_proc(monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    until(lambda: psutil.Process(child.pid).memory_info().rss > 30 << 20)
    here, elsewhere = ProcessTree(child.pid), ProcessTree(child.pid)
    _, rss = here.sample(0.0)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert elsewhere.sample(0.0)[1] == pytest.approx(rss, rel=0.02)
    assert processes.threads(child.pid, tmp_path) == []


def test_a_file_longer_than_one_read(tmp_path: Path) -> None:
    long = tmp_path / "long"
    for size in (0, 1, 4095, 4096, 4097, 10_000):
        long.write_bytes(b"x" * size)
        assert processes.read(str(long)) == b"x" * size
    with pytest.raises(FileNotFoundError):
        processes.read(str(tmp_path / "none"))
