"""Looks at a job's processes while its training waits for a batch: what each of them does, where it
waits in the kernel, and for which file.

All of that is read from /proc, from outside. No look opens a file of the job's or asks its file
system for anything: a drive that does not answer would hold up the look as well.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vitprof.telemetry import processes

MOST_FILES = 32
"""Open files of a process that are noted."""
CGROUPS = Path("/sys/fs/cgroup")
GONE = ""
"""The state of a process that is no longer there."""
# Places in /proc/PID/stat after the name in parentheses, as in `processes`: 12 in proc_pid_stat(5).
MAJOR_FAULTS = 9
SYSTEM_TICKS = 12
NOT_IN_A_CALL = b"-1"
"""What /proc/PID/syscall begins with where a thread is blocked elsewhere, as by a page that is
read."""
SLEEP = "sleep"
"""The name of each call that does nothing but let time pass."""
PAGE = "page"
"""The name of no call: a page of memory is awaited, of a mapped file or from swap."""
X86_64 = {
    **{0: "read", 17: "read", 19: "read", 295: "read", 327: "read", 40: "read"},
    **{1: "write", 18: "write", 20: "write", 296: "write", 328: "write"},
    **{2: "open", 257: "open", 437: "open"},
    **{4: "stat", 5: "stat", 6: "stat", 262: "stat", 332: "stat"},
    **{78: "list", 217: "list"},
    **{74: "sync", 75: "sync", 26: "sync"},
    **{7: "poll", 271: "poll", 23: "select", 270: "select", 232: "poll", 281: "poll"},
    **{202: "futex", 72: "file lock", 73: "file lock"},
    **{35: SLEEP, 230: SLEEP},
    **{42: "connect", 45: "receive", 47: "receive"},
    **{61: "wait", 247: "wait"},
}
"""Names of the calls that tell what a thread waits for, by their numbers (Linux,
arch/x86/entry/syscalls/syscall_64.tbl)."""
AARCH64 = {
    **{63: "read", 65: "read", 67: "read", 69: "read", 286: "read", 71: "read"},
    **{64: "write", 66: "write", 68: "write", 70: "write", 287: "write"},
    **{56: "open", 437: "open"},
    **{79: "stat", 80: "stat", 291: "stat"},
    **{61: "list"},
    **{82: "sync", 83: "sync", 227: "sync"},
    **{73: "poll", 72: "select", 22: "poll"},
    **{98: "futex", 25: "file lock", 32: "file lock"},
    **{101: SLEEP, 115: SLEEP},
    **{203: "connect", 207: "receive", 212: "receive"},
    **{260: "wait", 95: "wait"},
}
"""The same of 64-bit ARM (include/uapi/asm-generic/unistd.h)."""
CALLS = {"x86_64": X86_64, "aarch64": AARCH64}
SWAPPED = re.compile(rb"^pswp(?:in|out) (\d+)$", re.MULTILINE)
"""The pages that were read from swap, or written to it, in /proc/vmstat, which has some 200 lines."""
OF_A_DESCRIPTOR = frozenset(("read", "write", "list", "sync", "file lock", "receive"))
"""Calls whose first argument is the descriptor of what they work on."""


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """A process at one moment. Times are those so far; NaN and "" stand for what is not known."""

    pid: int
    state: str = GONE
    """That of its main thread, by the letter of proc_pid_stat(5); `GONE` where it has ended."""
    main_cpu_s: float = math.nan
    """CPU time of its main thread."""
    main_system_s: float = math.nan
    """The part of that in the kernel, as where it copies what it reads; counted in ticks of 10 ms."""
    queued_s: float = math.nan
    """Time in which its main thread was ready to run and had no core."""
    cpu_s: float = math.nan
    """CPU time of all its threads."""
    major_faults: float = math.nan
    """Pages that it had to wait for until they were read."""
    read_bytes: float = math.nan
    """Bytes that were read from drives for it."""
    call: str = ""
    """The name of the system call that its main thread is in."""
    target: str = ""
    """What that call works on: a path, or such as "pipe:[42]"."""
    waits_in: str = ""
    """The function of the kernel in which it waits."""
    files: tuple[str, ...] = ()
    """Regular files that it has open."""
    at_s: float = math.nan
    """When it was looked at: on a busy machine up to tenths of a second after the look began."""


@dataclass(frozen=True, slots=True)
class MachineLook:
    """The machine at one moment: times and counts so far, NaN where they are not counted."""

    busy_s: float = math.nan
    """CPU time of all programs, over all cores."""
    job_s: float = math.nan
    """CPU time of the job's processes, with those that they started."""
    cpu_pressure_s: float = math.nan
    """Time in which some thread had no core."""
    io_pressure_s: float = math.nan
    """Time in which some thread waited for a drive."""
    memory_pressure_s: float = math.nan
    """Time in which some thread waited for memory: of the machine, or of the job's cgroup where that
    is more."""
    swapped_pages: float = math.nan
    """Pages that were written to swap, or read from it."""
    at_s: float = math.nan
    """When it was looked at."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a thread of a process was in its Python code, as it said itself."""

    own: str = ""
    """The innermost place in the script's own code that makes the batch, such as "dataset.py:41"; of
    a data set in a library, the place in that. Empty where the thread makes none."""
    calls: str = ""
    """What that place calls, such as "PIL.Image.open"; empty where that is no function in Python."""
    frames: tuple[str, ...] = ()
    """At most 8 places, the innermost first."""
    opened: str = ""
    """The file that the thread opened last, with Python."""

    @property
    def makes_a_batch(self) -> bool:
        return bool(self.own)


@dataclass(frozen=True, slots=True)
class Look:
    """All that one look has seen."""

    at_s: float
    processes: tuple[ProcessLook, ...]
    machine: MachineLook = field(default_factory=MachineLook)
    stacks: dict[int, Stack] = field(default_factory=dict)
    """What processes have said since the look before, by their ids."""
    unanswered: frozenset[int] = frozenset()
    """Processes that have not answered for so long that no thread of theirs gets Python's lock."""


class Looker:
    """Takes looks at some processes. `proc`: another place of /proc, for tests."""

    def __init__(
        self,
        proc: Path = processes.PROC,
        cgroups: Path = CGROUPS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._clock = clock
        self._calls = CALLS.get(platform.machine(), {})
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def processes(self, pids: Iterable[int]) -> tuple[ProcessLook, ...]:
        return tuple(self.process(pid) for pid in pids)

    def process(self, pid: int) -> ProcessLook:
        """Returns a look at one process."""
        try:
            fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()
            state = fields[processes.STATE].decode()
            ticks = sum(map(int, fields[processes.OWN_TICKS]))
            major_faults = float(fields[MAJOR_FAULTS])
        except (OSError, ValueError, IndexError):
            return ProcessLook(pid)
        if state in ("Z", "X"):  # it has ended, and its parent has not asked how
            return ProcessLook(pid)
        at_s = self._clock()
        main_cpu_s, queued_s = self._schedule(pid)
        call, target = self._call(pid)
        return ProcessLook(
            pid=pid,
            at_s=at_s,
            state=state,
            main_cpu_s=main_cpu_s,
            main_system_s=self._system_s(pid),
            queued_s=queued_s,
            cpu_s=ticks / self._ticks_per_s,
            major_faults=major_faults,
            read_bytes=self._read_bytes(pid),
            call=call,
            target=target,
            waits_in=self._waits_in(pid),
            files=self._files(pid),
        )

    def machine(self, pid: int) -> MachineLook:
        """Returns a look at the machine; `pid`: the job's process, whose cgroup's memory counts."""
        of_memory = [self._pressure(self._proc / "pressure" / "memory")]
        of_memory += [self._pressure(place) for place in self._memory_pressures(pid)]
        known = [seconds for seconds in of_memory if not math.isnan(seconds)]
        return MachineLook(
            at_s=self._clock(),
            busy_s=self._busy_s(),
            job_s=self._job_s(pid),
            cpu_pressure_s=self._pressure(self._proc / "pressure" / "cpu"),
            io_pressure_s=self._pressure(self._proc / "pressure" / "io"),
            memory_pressure_s=max(known, default=math.nan),
            swapped_pages=self._swapped(),
        )

    def _read(self, name: str) -> bytes:
        return processes.read(f"{self._proc}/{name}")

    def _schedule(self, pid: int) -> tuple[float, float]:
        """Returns for how long the main thread has used a core, and has waited for one (s)."""
        try:
            used_ns, queued_ns, *_ = self._read(f"{pid}/task/{pid}/schedstat").split()
            return int(used_ns) / 1e9, int(queued_ns) / 1e9
        except (OSError, ValueError):
            return math.nan, math.nan

    def _system_s(self, pid: int) -> float:
        """Returns for how long the main thread has used a core in the kernel (s)."""
        try:
            fields = self._read(f"{pid}/task/{pid}/stat").rpartition(b")")[2].split()
            return int(fields[SYSTEM_TICKS]) / self._ticks_per_s
        except (OSError, ValueError, IndexError):
            return math.nan

    def _call(self, pid: int) -> tuple[str, str]:
        """Returns the name of the system call that the main thread is in, and what it works on.

        The kernel tells that only to who may trace the process: its parents and root, on most
        systems.
        """
        try:
            number, *arguments = self._read(f"{pid}/syscall").split()
        except (OSError, ValueError):
            return "", ""
        if number == NOT_IN_A_CALL:
            return PAGE, ""
        if not number.isdigit():  # it runs
            return "", ""
        name = self._calls.get(int(number), f"call {number.decode()}")
        if not arguments:
            return name, ""
        first = int(arguments[0], 16)
        if name == "select":
            # without descriptors it is Python's time.sleep, before 3.11
            name = "poll" if first else SLEEP
        if name in OF_A_DESCRIPTOR:
            return name, self._link(pid, str(first))
        return name, ""

    def _waits_in(self, pid: int) -> str:
        try:
            name = self._read(f"{pid}/wchan").decode()
        except (OSError, UnicodeDecodeError):
            return ""
        return "" if name == "0" else name

    def _read_bytes(self, pid: int) -> float:
        with contextlib.suppress(OSError, ValueError):
            for line in self._read(f"{pid}/io").splitlines():
                if line.startswith(b"read_bytes:"):
                    return float(line.split()[1])
        return math.nan

    def _files(self, pid: int) -> tuple[str, ...]:
        try:
            names = os.listdir(self._proc / str(pid) / "fd")
        except OSError:
            return ()
        found: list[str] = []
        for name in names:
            target = self._link(pid, name)
            if is_regular(target) and target not in found:
                found.append(target)
            if len(found) == MOST_FILES:
                break
        return tuple(found)

    def _link(self, pid: int, descriptor: str) -> str:
        try:
            return os.readlink(self._proc / str(pid) / "fd" / descriptor)
        except OSError:
            return ""

    def _busy_s(self) -> float:
        try:
            _, *ticks = self._read("stat").splitlines()[0].split()
            user, nice, system, _, _, interrupts, soft, stolen = map(int, ticks[:8])
        except (OSError, ValueError, IndexError):
            return math.nan
        return (user + nice + system + interrupts + soft + stolen) / self._ticks_per_s

    def _job_s(self, pid: int) -> float:
        """Returns the CPU time of a process and all that it has started; NaN where the kernel does not list
        the children of a process."""
        seconds = 0.0
        pending = [pid]
        while pending:
            of = pending.pop()
            try:
                threads = os.listdir(self._proc / str(of) / "task")
                fields = self._read(f"{of}/stat").rpartition(b")")[2].split()
                ticks = fields[processes.OWN_TICKS] + fields[processes.REAPED_TICKS]
                seconds += sum(map(int, ticks)) / self._ticks_per_s
            except (OSError, ValueError):
                if of == pid:
                    return math.nan
                continue  # it has just ended
            for thread in threads:
                try:
                    children = self._read(f"{of}/task/{thread}/children").split()
                except FileNotFoundError:
                    if not (self._proc / str(of) / "task" / thread).exists():
                        continue  # this thread has just ended
                    return math.nan
                except OSError:
                    continue
                pending += map(int, children)
        return seconds

    def _pressure(self, path: Path) -> float:
        """Returns for how long (s) some thread has waited, by the kernel's count in a file."""
        try:
            some = processes.read(str(path)).splitlines()[0]
            return float(some.rpartition(b"total=")[2]) / 1e6
        except (OSError, ValueError, IndexError):
            return math.nan

    def _memory_pressures(self, pid: int) -> list[Path]:
        """Returns where the memory pressure of a process's cgroup may be (cgroups v2)."""
        try:
            lines = self._read(f"{pid}/cgroup").decode().splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        for line in lines:
            if line.startswith("0::"):
                name = line.removeprefix("0::").lstrip("/")
                return [self._cgroups / name / "memory.pressure"]
        return []

    def _swapped(self) -> float:
        try:
            counts = [int(pages) for pages in SWAPPED.findall(self._read("vmstat"))]
        except OSError:
            return math.nan
        return float(sum(counts))


def is_regular(target: str) -> bool:
    """Returns whether the target of a descriptor is a file with data."""
    elsewhere = ("/dev/", "/proc/", "/sys/", "/memfd:")
    return target.startswith("/") and not target.startswith(elsewhere)
