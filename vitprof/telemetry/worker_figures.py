"""What the workers of a watched loader use, by mean: threads, CPU and memory.

Threads and CPU come with each sample, out of figures that are read anyway. Private memory is in
/proc/PID/smaps_rollup, for which the kernel walks all pages of a process: it is read of one worker with
each sample, and of all of them four times a minute.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vitprof.telemetry.memory import Memory, available_bytes, memory_of
from vitprof.telemetry.processes import ProcessFigures

READ_EVERY_S = 15.0
"""How often (s) the memory of the workers is read: five times in a minute and a quarter."""
MOST_SHARE = 0.01
"""Most of one core that reading it may use, as a share. It takes longer the more pages there are: 30 ms
for a worker of 336 MB beside busy programs."""


class WorkerFigures(NamedTuple):
    """Columns of a telemetry sample, of the workers that run then; NaN where they are not known."""

    worker_threads: float = math.nan
    worker_cpu_pct: float = math.nan
    worker_private_bytes: float = math.nan
    worker_pss_bytes: float = math.nan
    worker_rss_bytes: float = math.nan
    workers_age_s: float = math.nan
    memory_available_bytes: float = math.nan


class Workers:
    """The workers of the loader that trains, as the process that trains names them."""

    def __init__(
        self,
        read: Callable[[int], Memory | None] = memory_of,
        available: Callable[[], float] = available_bytes,
    ) -> None:
        self._pids: tuple[int, ...] = ()
        self._running: tuple[int, ...] = ()
        """Those of them that the last sample saw."""
        self._since_s = math.nan
        self._now = math.nan
        self._cpu_s: dict[int, float] = {}
        self._rounds = MemoryRounds(read)
        self._available = available

    def follow(self, pids: Sequence[int]) -> None:
        """Takes these processes for the workers from here on. May be called in any thread."""
        self._pids = tuple(pids)

    def sample(self, now: float, processes: Mapping[int, ProcessFigures]) -> WorkerFigures:
        """Returns what the workers use. `processes`: the figures of the job's processes, by their ids."""
        running = tuple(pid for pid in self._pids if pid in processes)
        if running != self._running:
            # A worker that began or ended would change the mean: what follows is of others.
            self._running = running
            self._since_s = now
            self._rounds.begin_anew()
        span_s = now - self._now
        self._now = now
        before = self._cpu_s
        self._cpu_s = {pid: processes[pid].cpu_s for pid in running}
        if not running:
            return WorkerFigures()
        used_s = [self._cpu_s[pid] - before[pid] for pid in running if pid in before]
        cpu_pct = math.nan
        if span_s > 0 and len(used_s) == len(running):
            cpu_pct = 100.0 * max(0.0, sum(used_s)) / span_s / len(running)
        threads = sum(processes[pid].threads for pid in running) / len(running)
        figures = WorkerFigures(threads, cpu_pct, workers_age_s=now - self._since_s)
        memory = self._rounds.next(now, running)
        if memory is None:
            return figures
        return figures._replace(
            worker_private_bytes=memory.private_bytes,
            worker_pss_bytes=memory.pss_bytes,
            worker_rss_bytes=memory.rss_bytes,
            memory_available_bytes=self._available(),
        )


class MemoryRounds:
    """Reads the memory of some processes in rounds: with each call one of them."""

    def __init__(
        self,
        read: Callable[[int], Memory | None],
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._read = read
        self._cpu_clock = cpu_clock
        self._remaining: list[int] = []
        self._found: list[Memory] = []
        self._took_s = 0.0
        self._began_s = math.nan
        self._due_s = -math.inf

    def begin_anew(self) -> None:
        """Begins a round of other processes with the next call."""
        self._remaining = []
        self._due_s = -math.inf

    def next(self, now: float, pids: Sequence[int]) -> Memory | None:
        """Returns the mean over the processes as a round is complete; None else, and where one of them
        cannot be read."""
        if not self._remaining:
            if now < self._due_s:
                return None
            self._remaining = list(pids)
            self._found = []
            self._took_s = 0.0
            self._began_s = now
        since_s = self._cpu_clock()
        memory = self._read(self._remaining.pop())
        self._took_s += self._cpu_clock() - since_s
        if memory is not None:
            self._found.append(memory)
        if self._remaining:
            return None
        self._due_s = self._began_s + max(READ_EVERY_S, self._took_s / MOST_SHARE)
        if len(self._found) < len(pids):
            return None
        sums = [sum(each) for each in zip(*self._found, strict=True)]
        return Memory(*(total / len(pids) for total in sums))
