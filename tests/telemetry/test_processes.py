"""CPU and memory of a job's process tree, with real child processes; /proc beside psutil; the whole machine."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from tests.engine_fixtures import wait_until
from vitprof.telemetry import processes
from vitprof.telemetry.processes import (
    CpuPressure,
    MachineCpu,
    ProcessTree,
    Rate,
    RunQueue,
    disk_io_bytes,
)

# Waits for orders on standard input, one a line; a grandchild does what its child is told after "child".
CHILD = """
import subprocess, sys
kept, child = [], None
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "grow":
        kept.append(b"x" * int(rest[0]))
    elif word == "burn":
        sum(i * i for i in range(int(rest[0])))
    elif word == "spawn":
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1]], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        rest = [str(child.pid)]
    elif word == "leave":
        left = subprocess.Popen([sys.executable, "-c", "import signal; print(flush=True); signal.pause()"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        left.stdout.readline()
        rest = [str(left.pid)]
    elif word == "child":
        child.stdin.write(" ".join(rest) + "\\n")
        child.stdin.flush()
        child.stdout.readline()
    elif word == "run":
        subprocess.run([sys.executable, "-S", "-c", f"sum(i * i for i in range({rest[0]}))"])
    elif word == "reap":
        child.kill()
        child.wait()
    print(*rest, flush=True)
if child is not None:
    child.kill()
    child.communicate()
"""
MIB = 1 << 20


class Child:
    """A child process that does one thing at a time, when told to."""

    def __init__(self) -> None:
        self.process: Any = subprocess.Popen(
            [sys.executable, "-c", CHILD, CHILD],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def tell(self, order: str) -> str:
        """Returns when it is done."""
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return str(self.process.stdout.readline().strip())

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    family = psutil.Process(child.pid).children(recursive=True)
    child.end()
    assert not any(process.is_running() for process in family)


def test_cpu_and_memory_of_a_child_and_of_its_own_child(child: Child) -> None:
    grandchild = int(child.tell("spawn"))
    tree = ProcessTree(child.pid)
    first, rss = tree.sample(10.0)
    assert math.isnan(first)
    assert rss > MIB
    assert tree.pids == {child.pid, grandchild}
    child.tell("burn 2000000")
    own, _ = tree.sample(11.0)
    child.tell("child burn 2000000")
    workers, _ = tree.sample(12.0)
    # In percent of one core over the made-up second between the samples; psutil's own figure is the reference.
    used = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in (child.pid, grandchild)]
    assert 0 < own <= 100 * used[0]
    assert 0 < workers <= 100 * sum(used)
    idle, before = tree.sample(13.0)
    assert 0 <= idle < min(own, workers)
    child.tell(f"grow {64 * MIB}")
    _, grown = tree.sample(14.0)
    child.tell(f"child grow {64 * MIB}")
    _, both = tree.sample(15.0)
    assert 60 * MIB < grown - before < 80 * MIB
    assert 60 * MIB < both - grown < 80 * MIB


def test_a_child_that_ends_between_samples(child: Child) -> None:
    tree = ProcessTree(child.pid)
    tree.sample(0.0)
    grandchild = int(child.tell("spawn"))
    child.tell("child burn 2000000")
    found, with_it = tree.sample(0.2)
    assert grandchild in tree.pids, "at once: it would be taken for another program"
    assert found > 0
    seen_s = [sum(psutil.Process(pid).cpu_times()) for pid in (child.pid, grandchild)]
    child.tell("child burn 2000000")
    child.tell("reap")
    cpu, without = tree.sample(100.2)
    assert (tree.pids, without < with_it) == ({child.pid}, True)
    ended_s = sum(psutil.Process(child.pid).cpu_times())
    assert cpu == pytest.approx(ended_s - sum(seen_s), abs=0.03), (
        "up to its end: the rest is of other programs"
    )
    child.tell("run 3000000")
    cpu, _ = tree.sample(101.2)
    assert (
        5
        < cpu
        == pytest.approx(100 * (sum(psutil.Process(child.pid).cpu_times()) - ended_s), abs=2)
    )


def test_a_process_found_late_does_not_show_as_a_peak(child: Child) -> None:
    tree = ProcessTree(child.pid)
    tree.sample(0.0)
    tree._rescan_s = 1.0  # as where looking for processes takes long
    grandchild = int(child.tell("spawn"))
    child.tell("child burn 3000000")
    tree.sample(0.999)
    assert grandchild not in tree.pids
    cpu, _ = tree.sample(1.0)
    assert grandchild in tree.pids
    # All of its CPU time in this one millisecond would be more than 10,000%. One thread has made 100% at most.
    assert 0 < cpu <= 150


def test_the_end_of_the_job() -> None:
    child = Child()
    tree = ProcessTree(child.pid)
    tree.sample(0.0)
    child.process.kill()
    # Dead, but not yet waited for: still in the list of processes, without memory.
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "its end")
    for now in (0.2, 100.0, 200.0):
        assert all(math.isnan(figure) for figure in tree.sample(now))
    child.end()
    assert all(math.isnan(figure) for figure in tree.sample(300.0))
    assert tree.pids == frozenset()
    assert all(
        math.isnan(figure) for figure in ProcessTree(child.pid).sample(0.0)
    )  # never seen alive


def test_workers_that_outlive_the_job_stay_in() -> None:
    child = Child()
    orphan = int(child.tell("leave"))
    tree = ProcessTree(child.pid)
    _, before = tree.sample(0.0)
    child.process.kill()
    child.end()
    for now in (0.2, 100.0, 200.0):
        cpu, rss = tree.sample(now)
        assert tree.pids == {orphan}
        assert cpu >= 0
        assert MIB < rss < before
    psutil.Process(orphan).kill()
    wait_until(lambda: math.isnan(tree.sample(time.monotonic())[1]), "its end")
    assert tree.pids == frozenset()


def test_who_measures_is_no_part_of_somebody_elses_job(
    monkeypatch: pytest.MonkeyPatch, child: Child
) -> None:
    """In a container without an init the job's process is the parent of all that have lost theirs."""
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: child.pid)
    tree = ProcessTree(here)
    tree.sample(0.0)
    assert here in tree.pids
    assert child.pid not in tree.pids


def thread(proc: Path, pid: int, tid: int, waited_ns: int | str) -> None:
    task = proc / str(pid) / "task" / str(tid)
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"123456 {waited_ns} 7\n")


def test_what_all_threads_waited_since_the_last_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    queue = RunQueue()
    thread(tmp_path, 1, 1, 5_000_000_000)
    assert math.isnan(queue.sample(10.0, [1])[0])
    thread(tmp_path, 1, 1, 5_250_000_000)
    thread(
        tmp_path, 1, 2, 9_000_000_000
    )  # a new thread: what it waited before is not of this interval
    assert queue.sample(11.0, [1, 77], main=1) == pytest.approx((25, 0))
    thread(tmp_path, 1, 1, 5_750_000_000)
    thread(tmp_path, 1, 2, 9_500_000_000)
    assert queue.sample(13.0, [1], main=2) == pytest.approx((50, 50))
    assert queue.sample(14.0, [1]) == (0, 0)
    assert all(
        math.isnan(queue.sample(*at)[0]) for at in ((14.0, [1]), (15.0, [2]))
    )  # no time has passed; no process
    for text in ("", "x", "12"):  # a system that does not count
        (tmp_path / "1" / "task" / "1" / "schedstat").write_text(text)
        shutil.rmtree(tmp_path / "1" / "task" / "2", ignore_errors=True)
        queue = RunQueue()
        assert all(math.isnan(queue.sample(now, [1])[1]) for now in (1.0, 2.0))


NAMED = "a) R 1 (b"
"""A program's name that looks like the fields after it."""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    program = f"import time; kept = bytearray(30 << 20); open('/proc/self/comm', 'w').write({NAMED!r}); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        yield process
        process.kill()


def test_figures_are_those_of_psutil_up_to_the_end(sleeper: subprocess.Popen[bytes]) -> None:
    process = psutil.Process(sleeper.pid)
    wait_until(lambda: process.name() == NAMED, "its name")
    times, figures = process.cpu_times(), processes.process_figures(sleeper.pid)
    assert figures.cpu_s == pytest.approx(times.user + times.system, abs=0.02)
    assert figures.rss_bytes == pytest.approx(process.memory_info().rss, rel=0.02)
    assert not figures.stopped
    sleeper.send_signal(signal.SIGSTOP)
    wait_until(lambda: processes.process_figures(sleeper.pid).stopped, "its stop")
    tree = ProcessTree(os.getpid())
    tree.sample(0.0)
    assert tree.stopped == {sleeper.pid}
    sleeper.send_signal(signal.SIGCONT)
    wait_until(lambda: not processes.process_figures(sleeper.pid).stopped, "its going on")
    sleeper.kill()
    wait_until(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE, "its end")
    assert processes.process_figures(sleeper.pid).rss_bytes == 0
    sleeper.wait()
    with pytest.raises(OSError, match=str(sleeper.pid)):
        processes.process_figures(sleeper.pid)
    assert not list(processes.descendants(sleeper.pid))


def test_children_of_every_thread_and_theirs() -> None:
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(Child).result()
        grandchild = int(child.tell("spawn"))
        found = set(processes.descendants(os.getpid()))
        assert found == {process.pid for process in psutil.Process().children(recursive=True)}
        assert list(processes.descendants(child.pid)) == [grandchild]
        assert {child.pid, grandchild} <= found
        child.end()


def test_a_kernel_that_lists_no_children_and_a_system_without_proc(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    wait_until(lambda: psutil.Process(sleeper.pid).name() == NAMED, "its name")  # it has begun
    with_lists, without, alone = (
        ProcessTree(os.getpid()),
        ProcessTree(os.getpid()),
        ProcessTree(sleeper.pid),
    )
    with_lists.sample(0.0)
    _, rss = alone.sample(0.0)
    monkeypatch.setattr(processes, "lists_children", lambda: False)
    without.sample(0.0)
    assert sleeper.pid in without.pids
    assert without.pids == with_lists.pids
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert ProcessTree(sleeper.pid).sample(0.0)[1] == pytest.approx(rss, rel=0.02)
    assert processes.threads(sleeper.pid) == []


def test_rates_and_files_longer_than_one_read(tmp_path: Path) -> None:
    long = tmp_path / "long"
    for size in (0, 1, 4095, 4096, 4097, 10_000):
        long.write_bytes(b"x" * size)
        assert processes.read(str(long)) == b"x" * size
    with pytest.raises(FileNotFoundError):
        processes.read(str(tmp_path / "none"))
    rate = Rate()
    assert math.isnan(rate(1.0, 100.0))
    assert (rate(3.0, 150.0), rate(4.0, 150.0)) == (25.0, 0.0)
    for now, value in [(4.0, 200.0), (3.0, 300.0), (5.0, 10.0), (6.0, math.nan), (7.0, 50.0)]:
        assert math.isnan(
            rate(now, value)
        )  # clock stands, clock back, counter back, not readable, nothing before
    assert rate(8.0, 60.0) == 10.0


def cpu_times(**seconds: float) -> Any:
    """What psutil.cpu_times returns, of Linux."""
    fields = type(psutil.cpu_times())._fields
    return psutil.cpu_times()._replace(**(dict.fromkeys(fields, 0.0) | seconds))


def test_cpu_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [cpu_times(user=10, idle=100, iowait=5)]
    times += [
        cpu_times(user=13, idle=105, iowait=7, guest=2)
    ] * 2  # guests are in user already; then no tick
    times += [
        cpu_times(user=17, idle=i, iowait=w, guest=2) for i, w in ((105, 7), (107, 6))
    ]  # it may fall
    monkeypatch.setattr(psutil, "cpu_times", Mock(side_effect=times))
    cpu = MachineCpu()
    assert math.isnan(cpu())
    assert cpu() == pytest.approx(30.0)
    assert math.isnan(cpu())
    assert (cpu(), cpu()) == (100.0, 0.0)


def test_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.disk_io_counters(nowrap=False)
    read_bytes, _ = disk_io_bytes()
    after = psutil.disk_io_counters(nowrap=False)
    if before is None or after is None:
        assert math.isnan(read_bytes)
    else:
        assert before.read_bytes <= read_bytes <= after.read_bytes
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: None)
    assert math.isnan(disk_io_bytes()[0])
    for error in (
        NotImplementedError("no usable /proc/diskstats"),
        PermissionError(),
        RuntimeError(),
    ):
        monkeypatch.setattr(psutil, "disk_io_counters", Mock(side_effect=error))
        assert math.isnan(disk_io_bytes()[0])


def test_the_share_of_the_time_in_which_somebody_waited_for_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    pressure = CpuPressure()

    def counted(total_us: int | str) -> None:
        (tmp_path / "pressure").mkdir(exist_ok=True)
        (tmp_path / "pressure" / "cpu").write_text(
            f"some avg10=1.00 avg60=2.00 avg300=3.00 total={total_us}\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
        )

    assert math.isnan(pressure.sample(1.0)), "this kernel does not count it"
    counted(1_000_000)
    assert math.isnan(pressure.sample(2.0)), "there is nothing to compare it with yet"
    counted(1_050_000)
    assert pressure.sample(2.2) == pytest.approx(25)
    counted(1_050_000)
    assert pressure.sample(2.4) == 0
    counted(9_000_000)
    assert pressure.sample(2.6) == 100, "read a moment apart"
    assert math.isnan(pressure.sample(2.6)), "no time has passed"
    counted("?")
    assert math.isnan(pressure.sample(3.0))
