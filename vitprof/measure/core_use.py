"""What the threads of a process use of the cores while it makes a batch.

Wall time alone misleads where other programs want the cores, too. A transform whose threads wait for each other
then takes several times as long, and a transform of one thread does not. So Linux is asked for how long threads
were ready to run and had no core: that of the thread that makes the batch is surely lost, and that of the others may
be. Both a built-in job and a user's own script are looked at so, in the process that makes their batches, for few
batches, so it must take little. Needs the standard library alone: it runs in a watched process, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from time import perf_counter, process_time
from typing import NamedTuple

TASKS = "/proc/self/task"
"""Where Linux says what each thread of a process uses."""
LEAST_BATCH_S = 20e-3
"""From so many seconds a batch on it is looked at: in a user's script that takes 0.25 to 0.4 ms of CPU time, and 1.2 ms
in a process of 64 threads (medians of 15), in one batch of 4, later of 32."""
EVERY = 4
"""Of so many batches that a thread makes, one is looked at: in a user's script the entry with the work on it takes
80 us, ten times as long as all the rest that is done for a batch."""
OFTEN = 64
"""After so many batches it is one of `LATER`."""
LATER = 32
"""Such a batch counts for as many as would have been looked at: a mean over all of them is one over all batches."""
MOST_READS = 32
"""Threads whose times are read for the calls of a batch, at most, where there are more than one call: a read takes 2
us, and a machine of 64 cores has as many threads of OpenMP."""
MOST_CALLS = 8
"""Calls in a batch, such as those of a Compose, for which all threads are looked at."""
USE = ("took_s", "cpu_s", "queued_s", "threads_queued_s")
"""The names of the numbers of `CoreTimes` in the facts of a run (`recording.StageUse`)."""


def look_counts_for(batches: int) -> int:
    """Returns for how many batches that are looked at the one of this number stands, of those that a thread makes;
    0: it is not looked at.

    Each is in another place of its block: a thread may make batches of two loaders in turn, and each fourth is always
    of the same one.
    """
    is_early = batches <= OFTEN
    block_size = EVERY if is_early else LATER
    before = 0 if is_early else OFTEN
    block = -(-(batches - before) // block_size)
    chosen = before + block * block_size - block % block_size
    return block_size // EVERY if batches == chosen else 0


class CoreTimes(NamedTuple):
    """What a process has used so far, or between two moments (s)."""

    wall_s: float
    cpu_s: float
    """CPU time of all threads."""
    queued_s: float
    """For how long the thread that makes the batch was ready to run and had no core."""
    threads_queued_s: float
    """The same of all other threads of the process together."""

    def since(self, before: CoreTimes) -> CoreTimes:
        """Returns what was used between two moments."""
        return CoreTimes(*[now - then for now, then in zip(self, before, strict=True)])

    def plus(self, other: CoreTimes) -> CoreTimes:
        """Returns what was used in both."""
        return CoreTimes(*[a + b for a, b in zip(self, other, strict=True)])

    def times(self, factor: float) -> CoreTimes:
        """Returns what is used in so many times as long."""
        return CoreTimes(*[factor * number for number in self])


NOTHING = CoreTimes(0.0, 0.0, 0.0, 0.0)
"""Nothing used."""


class OwnTimes(NamedTuple):
    """What the thread that makes a batch has used between two moments (s)."""

    wall_s: float
    cpu_s: float
    queued_s: float
    """For how long it was ready to run and had no core."""

    @property
    def slept_s(self) -> float:
        """Returns for how long it neither ran nor was ready to."""
        return self.wall_s - self.cpu_s - self.queued_s


class ThreadFiles:
    """The open files in which Linux says what threads of this process use: of the one that makes a batch, and of all
    others. Made by that thread; to be closed."""

    def __init__(self, hidden: Iterable[int] = ()) -> None:
        """Opens them, without those of the threads `hidden` (numbers of the system's). Raises `OSError` or `ValueError`
        where the system does not say it."""
        own = threading.get_native_id()
        numbers = os.listdir(TASKS)
        self._own = os.open(f"{TASKS}/{own}/schedstat", os.O_RDONLY)
        self._others: list[int] = []
        left_out = {own, *hidden}
        for number in numbers:
            if int(number) not in left_out:
                with contextlib.suppress(OSError):  # it has ended
                    self._others.append(os.open(f"{TASKS}/{number}/schedstat", os.O_RDONLY))
        self._others_ns = [0] * len(self._others)

    @property
    def calls(self) -> int:
        """Returns for how many calls in a batch all threads are looked at, at most."""
        return min(MOST_CALLS, max(1, MOST_READS // (1 + len(self._others))))

    def now(self) -> CoreTimes:
        """Returns what the process has used so far."""
        _, queued_ns = self.own_ns()
        threads_queued_s = self.others_queued_ns() / 1e9
        return CoreTimes(perf_counter(), process_time(), queued_ns / 1e9, threads_queued_s)

    def own_ns(self) -> tuple[int, int]:
        """Returns for how long the own thread has used a core so far, and for how long it has waited for one."""
        return _schedstat(self._own)

    def others_queued_ns(self) -> int:
        """Returns for how long the other threads have waited for one, all together. One that has ended keeps what it
        had: else the others would seem to have waited for less than nothing."""
        for at, other in enumerate(self._others):
            self._others_ns[at] = _schedstat(other)[1] or self._others_ns[at]
        return sum(self._others_ns)

    def close(self) -> None:
        for descriptor in (self._own, *self._others):
            os.close(descriptor)


def _schedstat(descriptor: int) -> tuple[int, int]:
    """Returns for how long a thread has used a core so far, and for how long it has waited for one (ns); 0 where it has
    ended."""
    try:
        used, queued, *_ = os.pread(descriptor, 100, 0).split()
        return int(used), int(queued)
    except (OSError, ValueError):
        return 0, 0


def divide(
    whole: CoreTimes, seen: Mapping[str, CoreTimes], seconds: Mapping[str, float], rest: str
) -> dict[str, CoreTimes]:
    """Returns what each part of a whole has used, and under the name `rest` what remains of it; that may be below 0.

    `seen`: what each part used in some of its calls. The others are taken to be like them. `seconds`: how long each
    part took in all. A part of which nothing was seen is in the rest.
    """
    parts = {
        name: use.times(seconds[name] / use.wall_s) for name, use in seen.items() if use.wall_s > 0
    }
    remaining = whole
    for use in parts.values():
        remaining = remaining.since(use)
    return {**parts, rest: remaining}


def as_facts(uses: Mapping[str, CoreTimes]) -> dict[str, dict[str, float]]:
    """Returns what stages have used, as the facts of a run have it. What remained for one may be below 0, and a thread
    waits for no longer than a stage takes."""
    facts = {}
    for name, use in uses.items():
        at_least_0 = CoreTimes(*[max(0.0, number) for number in use])
        queued_s = min(at_least_0.queued_s, at_least_0.wall_s)
        facts[name] = dict(zip(USE, at_least_0._replace(queued_s=queued_s), strict=True))
    return facts
