"""What the threads of a process use of the cores while it makes a batch, in each stage and each transform.

Wall time alone misleads where other programs want the cores, too. A transform whose threads wait for each other
then takes several times as long, and a transform of one thread does not. So Linux is asked for how long threads
were ready to run and had no core: that of the thread that makes the batch is surely lost, and that of the others may
be. Runs in the loop's process and in its workers, for few calls of few batches, so it must take little.
"""

from __future__ import annotations

import contextlib
import os
import threading
from time import perf_counter, process_time
from typing import Any, NamedTuple

from vitprof.watch.own_thread import native_ids

TASKS = "/proc/self/task"
"""Where Linux says what each thread of a process uses."""
LEAST_BATCH_S = 20e-3
"""From so many seconds a batch on it is looked at: that takes 0.25 to 0.4 ms of CPU time, and 1.2 ms in a process of
64 threads (medians of 15), in one batch of 4, later of 32."""
MOST_READS = 32
"""Threads whose times are read for the calls of a batch, at most, where there are more than one call: a read takes 2
us, and a machine of 64 cores has as many threads of OpenMP."""
MOST_CALLS = 8
"""Calls of a Compose that are looked at in a batch."""


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


class CoreLook:
    """Looks at what a process uses while a thread of it makes a batch; made by that thread."""

    def __init__(self, samples: int) -> None:
        """Begins to look at a batch of so many samples. Raises `OSError` where Linux does not say it."""
        own = threading.get_native_id()
        self._own = os.open(f"{TASKS}/{own}/schedstat", os.O_RDONLY)
        self._others: list[int] = []
        hidden = {own, *native_ids()}
        for name in os.listdir(TASKS):
            if int(name) not in hidden:
                with contextlib.suppress(OSError):  # it has ended
                    self._others.append(os.open(f"{TASKS}/{name}/schedstat", os.O_RDONLY))
        calls = min(MOST_CALLS, max(1, MOST_READS // (1 + len(self._others))))
        self._every = max(1, samples // calls)
        self._calls = 0
        self._began = self._now()
        self._collating: CoreTimes | None = None
        self._collate = CoreTimes(0.0, 0.0, 0.0, 0.0)

    def begin_call(self) -> list[CoreTimes] | None:
        """Returns a list with what has been used before a call of a Compose; None for most of them: a few are looked
        at, spread over the batch."""
        is_due = not self._calls % self._every
        self._calls += 1
        return [self._now()] if is_due else None

    def now(self) -> CoreTimes:
        """Returns what the process has used so far."""
        return self._now()

    def begin_collate(self) -> None:
        self._collating = self._now()

    def end_collate(self) -> None:
        if self._collating is not None:
            used = self._now().since(self._collating)
            self._collate = CoreTimes(*[a + b for a, b in zip(self._collate, used, strict=True)])
            self._collating = None

    def end(self) -> tuple[CoreTimes, CoreTimes]:
        """Ends the look. Returns what the dataset, with its transforms, and collate have used since it began."""
        dataset = self._now().since(self._began).since(self._collate)
        for descriptor in (self._own, *self._others):
            os.close(descriptor)
        return dataset, self._collate

    def _now(self) -> CoreTimes:
        threads_queued_ns = sum(map(_queued_ns, self._others))
        return CoreTimes(
            perf_counter(), process_time(), _queued_ns(self._own) / 1e9, threads_queued_ns / 1e9
        )


def _queued_ns(schedstat: int) -> int:
    """Returns for how long a thread has waited for a core so far (ns); 0 where it has ended."""
    try:
        return int(os.pread(schedstat, 100, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def look_at(index: Any) -> CoreLook | None:
    """Returns a look at the batch that begins, of the samples `index`: a list of them, or what gives a whole batch.
    None where the system does not say for how long a thread waits."""
    try:
        return CoreLook(len(index) if isinstance(index, list) else 1)
    except (OSError, ValueError):
        return None
