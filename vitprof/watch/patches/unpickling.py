"""How long it takes to unpickle the batches that workers send: timed for a few batches of each loader.

A DataLoader's workers send batches through a queue of multiprocessing, which unpickles them by
`ForkingPickler.loads`: in the thread that trains, or in the one that pins. PyTorch opens each segment of
shared memory there, so a batch of many tensors takes long. A thread that pins holds Python's lock for most of
that, and as it frees a batch that it has copied: the thread that trains cannot launch work meanwhile (pytorch issue
77139). How long that one waited cannot be told from its waits for a GPU. But the other one has the lock meanwhile, so
it is no longer than that runs, or waits for a core, while the loop works: Linux counts both.
"""

from __future__ import annotations

import multiprocessing.reduction
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_native_id
from time import perf_counter, thread_time
from typing import Any

from vitprof.measure.core_use import TASKS
from vitprof.watch.fetch_times import ThreadTimes, read_schedstat

SKIPPED = 2
"""The first batches of a loader: what unpickling needs is imported with them."""
BATCHES = 16
"""Batches of a loader that are timed."""
MOST_BATCHES = 1_000
"""Batches of all loaders after which nothing is timed any more."""
MOST_WAITING = 64
"""Batches that no loop has received, of which the times are kept. A forked worker has the function, too, and
unpickles by it what it is to make."""


@dataclass(slots=True)
class _OfLoader:
    """What the batches of a loader took so far."""

    batches: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    elsewhere: int = 0
    """Batches that another thread unpickled than the one that received them."""
    pinning: int = 0
    """The number of that thread as the system has it; 0 for none."""
    begun: ThreadTimes | None = None
    """What it had used as the loop got the batch that it works on."""
    pinning_cpu_s: float = 0.0
    pinning_queued_s: float = 0.0
    """What it used while the loop worked on batches, and how long it waited for a core."""
    works: int = 0
    """These batches."""


class UnpicklingClock:
    """Times the unpickling of batches, until enough is known."""

    def __init__(self, describe: Callable[[dict[str, Any]], None]) -> None:
        """`describe` is called once for each loader, with what is known of it."""
        self._describe = describe
        self._loads = multiprocessing.reduction.ForkingPickler.loads
        self._unpickled: list[tuple[int, float, float]] = []
        """The thread, the seconds, and those of CPU, of each batch that no loop has received yet."""
        self._of_loader: dict[int, _OfLoader] = {}
        self._batches = 0
        multiprocessing.reduction.ForkingPickler.loads = self._timed

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        began_s = perf_counter()
        began_cpu_s = thread_time()
        value = self._loads(*args, **kwargs)
        cpu_s = thread_time() - began_cpu_s
        took_s = perf_counter() - began_s
        # A worker sends the number of the batch with it.
        is_batch = type(value) is tuple and len(value) == 2 and type(value[0]) is int
        if is_batch and len(self._unpickled) < MOST_WAITING:
            self._unpickled.append((get_native_id(), took_s, cpu_s))
        return value

    def received(self, loader: int) -> bool:
        """Counts a batch of a loader that was received; returns whether more are to be timed."""
        unpickled = self._unpickled
        self._unpickled = []
        self._batches += 1
        known = self._of_loader.setdefault(loader, _OfLoader())
        known.batches += 1
        if SKIPPED < known.batches <= SKIPPED + BATCHES:
            known.seconds += sum(seconds for _, seconds, _ in unpickled)
            known.cpu_s += sum(cpu_s for _, _, cpu_s in unpickled)
            known.elsewhere += sum(thread != get_native_id() for thread, _, _ in unpickled)
        if known.batches == SKIPPED:
            known.pinning = next((n for n, _, _ in unpickled if n != get_native_id()), 0)
        if SKIPPED <= known.batches < SKIPPED + BATCHES:
            known.begun = used_by(known.pinning)
        if known.batches == SKIPPED + BATCHES and known.seconds:
            in_thread = "pinning" if known.elsewhere > BATCHES // 2 else "training"
            facts: dict[str, Any] = {
                "unpickle_s": known.seconds / BATCHES,
                "unpickle_cpu_s": known.cpu_s / BATCHES,
                "unpickled_in": in_thread,
            }
            if known.works:
                facts["pinning_cpu_s"] = known.pinning_cpu_s / known.works
                facts["pinning_queued_s"] = known.pinning_queued_s / known.works
            self._describe({"loader": loader, **facts})
        return self._batches < MOST_BATCHES

    def requested(self, loader: int) -> None:
        """Notes that a loop is about to request the next batch of a loader, and works no longer."""
        known = self._of_loader.get(loader)
        if known is None or known.begun is None:
            return
        now = used_by(known.pinning)
        if now is not None:
            known.pinning_cpu_s += now.cpu_s - known.begun.cpu_s
            known.pinning_queued_s += now.queued_s - known.begun.queued_s
            known.works += 1
        known.begun = None

    def remove(self) -> None:
        """Restores the function, unless another tool has replaced it since."""
        if multiprocessing.reduction.ForkingPickler.loads == self._timed:
            multiprocessing.reduction.ForkingPickler.loads = self._loads


def used_by(thread: int) -> ThreadTimes | None:
    """Returns what a thread of this process has used so far, by its number; None where that is not known, as for 0."""
    if not thread:
        return None
    try:
        cpu_ns, queued_ns = read_schedstat(f"{TASKS}/{thread}/schedstat")
    except (OSError, ValueError):
        return None
    return ThreadTimes(cpu_ns / 1e9, queued_ns / 1e9)
