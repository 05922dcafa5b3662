"""The cases of the watching benchmark, and the CPU times of the processes around a loop."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN_OF = "VITPROF_BENCHMARK_RUN"
"""Environment variable: the run that a process was started for."""
BATCH = 8
WARMUP_STEPS = 20
"""Steps before timing begins: workers start, vitprof's collector begins its telemetry."""


@dataclass(frozen=True)
class Case:
    """A loop over a DataLoader with `workers`, whose step takes `step_ms` when it is not watched."""

    step_ms: float
    workers: int
    steps: int
    """Steps in each round."""

    @property
    def name(self) -> str:
        return f"{self.step_ms:g}-{self.workers}"

    @property
    def title(self) -> str:
        return f"{self.step_ms:g} ms, {self.workers} workers"


STEPS: dict[float, int] = {0.5: 1600, 1.5: 600, 5.0: 200, 20.0: 50}
"""Step time in ms -> steps in a round: about a second each."""
CASES: tuple[Case, ...] = tuple(
    Case(ms, workers, n) for ms, n in STEPS.items() for workers in (0, 2)
)


def cpu_beside() -> dict[str, float]:
    """Returns the CPU seconds so far of the other live processes of this run: "workers", which descend from this one,
    and "others", which watch it. Reads Linux's schedstat, which counts nanoseconds.
    """
    me, parents = os.getpid(), dict(_of_this_run(os.environ[RUN_OF]))
    spent = {"workers": 0.0, "others": 0.0}
    for pid in parents.keys() - {me}:
        spent["workers" if _descends(pid, me, parents) else "others"] += _cpu_s(pid)
    return spent


def _of_this_run(name: str) -> Iterator[tuple[int, int]]:
    """Yields the pid and parent of every process that was started for this run, in whatever session."""
    mark = f"{RUN_OF}={name}\0".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark in (entry / "environ").read_bytes():
                    yield (
                        int(entry.name),
                        int((entry / "stat").read_text().rpartition(")")[2].split()[1]),
                    )
            except OSError:  # gone, or another user's
                continue


def _descends(pid: int, from_pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == from_pid:
            return True
    return False


def _cpu_s(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[0])
        except OSError:
            continue
    return total / 1e9
