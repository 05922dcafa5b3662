"""Which programs other than the job's use the CPU, by name and id.

What they use is read from /proc/PID/stat, which any user may read. `program_names` says what they are
called.
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from vitprof.telemetry import program_names
from vitprof.telemetry.processes import OWN_TICKS, PROC, STATE, read

FIRST_LOOK_S = 2.0
"""When the programs are looked at again for the first time; then after twice as long each time, so that a long run
costs as little. A look takes 12 us for each process of the machine."""
LONGEST_S = 60.0
"""The longest time between two looks."""
MOST = 5
"""Programs that are named, those that used most."""
ENDED = (b"Z", b"X")
"""States of a process that has ended, whose parent may still ask how. That of the job itself is no other program: it
has left the job's tree by then."""
LEAST_CORES = 0.05
"""Cores that a program must use, on average, to be named."""


@dataclass(slots=True)
class Seen:
    """A process, and what it has used since it was first seen."""

    kernels_name: str
    before_s: float
    """Its CPU time when it was first seen."""
    used_s: float = 0.0
    name: str = ""
    """What a person calls its program; empty as long as it has used nothing."""


@dataclass(slots=True)
class Used:
    """What all processes of one name have used."""

    used_s: float = 0.0
    processes: list[tuple[float, int]] = field(default_factory=list)
    """What each of them used (s), and its id."""


class OtherPrograms:
    """What programs outside of a job have used of the cores since the first look."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}
        self._began_s: float | None = None
        self._next_s = 0.0
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def sample(self, now: float, of_job: Set[int]) -> list[dict[str, Any]] | None:
        """Returns the programs that used most so far, as the fact "other_programs" has them; None where it is not
        time for a look. `of_job`: the ids of the job's processes."""
        if self._began_s is None:
            self._began_s = now
            self._next_s = now + FIRST_LOOK_S
            self._look(of_job, is_first=True)
            return None
        if now < self._next_s:
            return None
        span_s = now - self._began_s
        self._next_s = now + min(span_s, LONGEST_S)
        self._look(of_job, is_first=False)
        return self._largest(span_s)

    def _look(self, of_job: Set[int], *, is_first: bool) -> None:
        for pid in _pids():
            if pid in of_job:
                self._seen.pop(pid, None)
                continue
            try:
                kernels_name, cpu_s = self._figures(pid)
            except (OSError, ValueError, IndexError):
                continue  # it has ended: what it used by the look before counts
            seen = self._seen.get(pid)
            if seen is None or cpu_s < seen.before_s:  # a new one, which may have the id of another
                seen = Seen(kernels_name, cpu_s if is_first else 0.0)
                self._seen[pid] = seen
            used_s = cpu_s - seen.before_s
            # the kernel's name changes as a process becomes another program
            if used_s > seen.used_s and not (seen.name and seen.kernels_name == kernels_name):
                seen.kernels_name = kernels_name
                seen.name = program_names.name_of(pid, kernels_name)
            seen.used_s = used_s

    def _figures(self, pid: int) -> tuple[str, float]:
        """Returns the kernel's name of a process and its CPU time. Raises `OSError` where it has ended."""
        head, _, rest = read(f"{PROC}/{pid}/stat").rpartition(b")")
        fields = rest.split()
        if fields[STATE] in ENDED:
            raise ProcessLookupError
        name = head.partition(b"(")[2].decode(errors="replace")
        return name, sum(map(int, fields[OWN_TICKS])) / self._ticks_per_s

    def _largest(self, span_s: float) -> list[dict[str, Any]]:
        programs: dict[str, Used] = {}
        for pid, seen in self._seen.items():
            if seen.name:
                program = programs.setdefault(seen.name, Used())
                program.used_s += seen.used_s
                program.processes.append((seen.used_s, pid))
        most = sorted(programs.items(), key=lambda item: -item[1].used_s)[:MOST]
        return [
            {
                "name": name,
                "pid": max(program.processes)[1],
                "cores": round(program.used_s / span_s, 3),
                "processes": len(program.processes),
            }
            for name, program in most
            if program.used_s >= LEAST_CORES * span_s
        ]


def _pids() -> list[int]:
    """Returns the ids of all processes; none where this system has no /proc."""
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdigit()]
    except OSError:
        return []
