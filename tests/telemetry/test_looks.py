"""What a look reads of a process and of the machine, from a /proc that is written by hand."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from vitprof.telemetry import looks
from vitprof.telemetry.looks import GONE, Looker, MachineLook, ProcessLook

PID = 41
TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A directory that passes for /proc."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def write(self, name: str, text: str) -> None:
        path = self.at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(
        self, pid: int = PID, state: str = "S", syscall: str = "running", parent: int = 1
    ) -> None:
        own = f"{3 * TICKS} {TICKS} {2 * TICKS} 0"
        stat = f"{pid} (a (b) c) {state} {parent} 1 1 0 -1 0 100 0 12 0 {own} 20 0 1 0 5 8192 30"
        self.write(f"{pid}/stat", stat)
        of_thread = f"{TICKS} {TICKS // 2} 0 0"
        self.write(f"{pid}/task/{pid}/stat", stat.replace(own, of_thread))
        self.write(f"{pid}/task/{pid}/schedstat", "1500000000 250000000 12")
        self.write(f"{pid}/task/{pid}/children", "")
        self.write(f"{pid}/syscall", syscall)
        self.write(f"{pid}/wchan", "futex_wait_queue")
        self.write(f"{pid}/io", "rchar: 900\nread_bytes: 4096\n")
        (self.at / f"{pid}/fd").mkdir(exist_ok=True)

    def link(self, descriptor: int, target: str) -> None:
        (self.at / f"{PID}/fd/{descriptor}").symlink_to(target)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return Proc(tmp_path / "proc")


def look(proc: Proc, pid: int = PID) -> ProcessLook:
    return Looker(proc.at, proc.at.parent / "cgroup", lambda: 12.5).process(pid)


def test_a_process_that_reads_a_file(proc: Proc) -> None:
    proc.process(state="D", syscall="0 0x7 0x55 0x1000 0x0 0x0 0x0 0x7ffc 0x7f01")
    proc.link(0, "/dev/null")
    proc.link(7, "/data/0481.jpg")
    proc.link(8, "pipe:[12]")
    assert look(proc) == ProcessLook(
        pid=PID,
        state="D",
        main_cpu_s=1.5,
        main_system_s=0.5,
        queued_s=0.25,
        cpu_s=4.0,
        major_faults=12.0,
        read_bytes=4096.0,
        call="read",
        target="/data/0481.jpg",
        waits_in="futex_wait_queue",
        files=("/data/0481.jpg",),
        at_s=12.5,
    )


@pytest.mark.parametrize(
    ("syscall", "call"),
    [
        ("running", ""),
        ("-1 0x7ffc 0x7f01", looks.PAGE),
        ("230 0x0 0x0 0x7ffd 0x7ffd 0x0 0x0 0x7ffd 0x7f43", looks.SLEEP),
        ("23 0x0 0x0 0x0 0x0 0x7ffd 0x0 0x7ffd 0x7f43", looks.SLEEP),
        ("23 0x5 0x7ffd 0x0 0x0 0x7ffd 0x0 0x7ffd 0x7f43", "poll"),
        ("327 0x7 0x7ffd 0x1 0x0 0x0 0x0 0x7ffd 0x7f43", "read"),
        ("202 0x7f 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7f43", "futex"),
        ("58 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f43", "call 58"),
    ],
)
def test_calls_have_names(proc: Proc, syscall: str, call: str) -> None:
    proc.process(syscall=syscall)
    assert look(proc).call == call


def test_what_may_not_be_read_is_not_known(proc: Proc) -> None:
    proc.process()
    for name in ("syscall", "wchan", "io", f"task/{PID}/schedstat"):
        (proc.at / str(PID) / name).unlink()
    found = look(proc)
    assert (found.state, found.call, found.waits_in) == ("S", "", "")
    assert math.isnan(found.queued_s)
    assert math.isnan(found.main_cpu_s)
    assert math.isnan(found.read_bytes)


@pytest.mark.parametrize("state", ["Z", "X", None])
def test_a_process_that_has_ended_is_gone(proc: Proc, state: str | None) -> None:
    if state is not None:
        proc.process(state=state)
    assert look(proc).state == GONE


def test_the_machine(proc: Proc) -> None:
    proc.process()
    proc.process(50, parent=PID)
    proc.write(f"{PID}/task/{PID}/children", "50 ")
    proc.write(f"{PID}/cgroup", "4:memory:/old\n0::/job\n")
    ticks = [TICKS * n for n in (5, 1, 2, 90, 9, 1, 1, 3, 0, 0)]
    proc.write("stat", f"cpu  {' '.join(map(str, ticks))}\ncpu0 1\n")
    pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 total=5\n"
    for name, total in (("cpu", 2_000_000), ("io", 3_000_000), ("memory", 400_000)):
        proc.write(f"pressure/{name}", pressure.format(total))
    proc.write("../cgroup/job/memory.pressure", pressure.format(700_000))
    proc.write("vmstat", "nr_free_pages 7\npswpin 30\npswpout 12\n")
    found = Looker(proc.at, proc.at.parent / "cgroup", lambda: 12.5).machine(PID)
    # 3 + 1 of its own and 2 of children that have ended, of both processes
    assert found == MachineLook(13.0, 12.0, 2.0, 3.0, 0.7, 42.0, at_s=12.5)


def test_a_machine_that_counts_nothing(proc: Proc) -> None:
    proc.process()
    found = Looker(proc.at, proc.at.parent / "cgroup").machine(PID)
    assert found.job_s == 6.0
    known = (found.busy_s, found.cpu_pressure_s, found.io_pressure_s, found.memory_pressure_s)
    assert all(math.isnan(each) for each in (*known, found.swapped_pages))


def test_this_process_itself() -> None:
    found = Looker().process(os.getpid())
    if not looks.processes.PROC.is_dir():
        assert found.state == GONE
        return
    assert found.state in ("R", "S", "D")
    assert found.cpu_s > 0
