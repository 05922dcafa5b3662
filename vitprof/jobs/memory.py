"""Says why a job was ended by SIGKILL: which memory limit was reached, what the job held, and what to try."""

from __future__ import annotations

import contextlib
import math
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from vitprof.formats import size

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
LOOK_EVERY_S = 1.0
NO_LIMIT = 2**60
"""Version 1 of control groups reports "no limit" as a number near 2**63."""
TRY = "try a smaller batch size, fewer workers, a smaller prefetch factor, or a storage that is not kept in memory"


@dataclass(frozen=True)
class KillCounts:
    """How often memory has run short so far; None where the kernel does not report it."""

    group: int | None
    """Processes that the kernel killed in this process's control group, such as a container's: `oom_kill` of cgroup
    v2's memory.events, of v1's memory.oom_control."""
    limit: int | None
    """Times that the limit of that group, or of one above it, was reached: `oom` of memory.events, v1's failcnt. Does
    not rise where the whole machine runs out of memory."""
    machine: int | None
    """Processes that the kernel killed on the whole machine: `oom_kill` of /proc/vmstat, from Linux 4.13 on."""


def kill_counts() -> KillCounts:
    """Returns the current counts."""
    groups = _groups()
    of_group = [_numbers(group / "memory.events") or _numbers(group / "memory.oom_control") for group in groups[:1]]
    limits = [_numbers(group / "memory.events").get("oom", _number(group / "memory.failcnt")) for group in groups]
    reached = [limit for limit in limits if limit is not None]
    killed = of_group[0].get("oom_kill") if of_group else None
    return KillCounts(killed, sum(reached) if reached else None, _numbers(PROC / "vmstat").get("oom_kill"))


def memory_limit() -> int | None:
    """Returns the bytes that this process's control group may use, by its own limit or one above it; None without."""
    limits = (_number(group / name) for group in _groups() for name in ("memory.max", "memory.limit_in_bytes"))
    return min((limit for limit in limits if limit is not None and limit < NO_LIMIT), default=None)


def _groups() -> list[Path]:
    """Returns the directories of the control group that counts this process's memory, and of those above it."""
    with contextlib.suppress(OSError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            number, kinds, path = line.split(":", 2)
            if number != "0" and "memory" not in kinds.split(","):
                continue
            top = CGROUPS if number == "0" else CGROUPS / "memory"
            own = top / path.lstrip("/")
            if not own.is_dir():  # in a container the path may be the host's, while the mount is the container's own
                own = top
            found = [group for group in (own, *own.parents) if group == top or group.is_relative_to(top)]
            if (own / "memory.stat").exists():
                return found
    return []


def _number(path: Path) -> int | None:
    """Returns the number in a file; None where it says "max", or can't be read."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _numbers(path: Path) -> dict[str, int]:
    """Returns the lines "name number" of a file; empty where it can't be read."""
    with contextlib.suppress(OSError, ValueError):
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    return {}


class MemoryWitness:
    """The memory that a job holds while it runs, and the reason why it was killed."""

    def __init__(self, pid: int) -> None:
        self._pid, self._before = pid, kill_counts()
        self._looked = -math.inf
        self._held = math.nan

    def look(self) -> None:
        """Notes the resident memory of the job's processes, at most once a second."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        with contextlib.suppress(psutil.Error, OSError):
            held = float(sum(_resident(pid) for pid in _tree(self._pid)))
            self._held = held or self._held  # 0: it has just ended

    def killed_words(self) -> str:
        """Returns why SIGKILL ended the job, in words, without a full stop."""
        now, before = kill_counts(), self._before
        if _more(now.group, before.group) and _more(now.limit, before.limit):
            limit = memory_limit()
            of = f" of {size(limit)}" if limit is not None else ""
            return (
                f"the kernel ended it because its control group (a container's, or the session's) reached its limit{of}"
                f"{self._held_words()}; {TRY}, or raise the limit (docker run --memory)"
            )
        if _more(now.group, before.group) or (now.group is None and _more(now.machine, before.machine)):
            total = size(psutil.virtual_memory().total)
            return (
                f"the kernel ended it because the machine's memory of {total} was used up{self._held_words()}; {TRY}, "
                "or end other programs"
            )
        counted = now.group is not None or now.machine is not None
        who = "not by the kernel for memory, so by a person or a program such as a batch system or earlyoom"
        return f"{who if counted else 'the system may have run out of memory'}{self._held_words()}"

    def _held_words(self) -> str:
        return f"; the job held {size(self._held)} when last seen" if math.isfinite(self._held) else ""


def _more(now: int | None, before: int | None) -> bool:
    return now is not None and now > (before or 0)


def _tree(pid: int) -> list[int]:
    """Returns a process and its descendants, from the kernel's lists: psutil would read every process there is."""
    found = [pid]
    for children in (PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                found += _tree(int(child))
    return found


def _resident(pid: int) -> int:
    """Returns the resident bytes of a process; 0 where it has ended."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def limit_words() -> str:
    """Returns which ulimit bounds this process's memory, in words; "" where none does."""
    for name, number, option in (("address space", resource.RLIMIT_AS, "-v"), ("data", resource.RLIMIT_DATA, "-d")):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            return f"this process may have {size(soft)} of {name} (ulimit {option})"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the system refused memory: a `MemoryError`, or the message of PyTorch's allocator or a fork."""
    said = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in said or "Cannot allocate memory" in said


def out_of_memory_words(said: str) -> str:
    """Returns one line for a job that the system refused memory. `said`: the error's message."""
    held = size(_resident_and_below())
    limit = limit_words()
    why = f"; {limit}: raise it, or {TRY}" if limit else f"; {TRY}, or end other programs"
    return f"out of memory ({said}); the job held {held}{why}"


def _resident_and_below() -> int:
    return sum(_resident(pid) for pid in _tree(psutil.Process().pid))
