"""What it takes a worker to pickle the batches that it sends: timed for its first ones, and sent with those after them.

A worker's queue has a thread of its own (`multiprocessing.Queue`, its feeder). It pickles a batch by
`ForkingPickler.dumps`, where PyTorch gives each tensor a segment of shared memory, and moves it there unless collate
has put it there already. Meanwhile the worker makes its next batch, so that only two things hold that up: Python's
lock, and a core that both need. The CPU time of that thread is the most that they can.
"""

from __future__ import annotations

import functools
import multiprocessing.reduction
from time import perf_counter, thread_time
from typing import Any

SKIPPED = 2
"""The first batches of a worker: what pickling needs is imported and begun with them."""
BATCHES = 8
"""Batches of a worker that are timed after these, and those of a loader's workers together from which their mean
is described: each worker makes a few batches of a short epoch."""
PickleTimes = tuple[int, float, float]
"""Batches, and what pickling them took in all: seconds from begin to end, and of CPU."""


class PicklingClock:
    """Times how batches are pickled in this process, a worker, until enough is known."""

    def __init__(self, mark: bytes) -> None:
        """`mark`: begins the bytes that are sent with each batch."""
        self._mark = mark
        self._replaced = vars(multiprocessing.reduction.ForkingPickler)["dumps"]
        self._batches = 0
        self._pickled: list[tuple[float, float]] = []
        """The seconds of each batch that are yet to be sent. The feeder appends, the thread that makes
        batches takes."""
        self._dumps = classmethod(self._timed_by)
        put_in_place(self._dumps)

    def _timed_by(self, kind: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        dumps = self._replaced.__get__(None, kind)
        if not self._is_batch(obj):
            return dumps(obj, *args, **kwargs)
        began_s = perf_counter()
        began_cpu_s = thread_time()
        pickled = dumps(obj, *args, **kwargs)
        cpu_s = thread_time() - began_cpu_s
        took_s = perf_counter() - began_s
        self._batches += 1
        if self._batches > SKIPPED:
            self._pickled.append((took_s, cpu_s))
        if self._batches >= SKIPPED + BATCHES:
            self.remove()
        return pickled

    def _is_batch(self, obj: Any) -> bool:
        """Returns whether this is a batch with its number, as a worker sends it, and the bytes of ours."""
        if type(obj) is not tuple or len(obj) != 2:
            return False
        sent = obj[1]
        return (
            type(sent) is tuple
            and len(sent) == 2
            and type(sent[1]) is bytes
            and sent[1].startswith(self._mark)
        )

    def taken(self) -> PickleTimes | None:
        """Returns the times since the last call; None where there are none."""
        batches = 0
        took_s = cpu_s = 0.0
        while self._pickled:
            seconds, of_cpu_s = self._pickled.pop(0)
            batches += 1
            took_s += seconds
            cpu_s += of_cpu_s
        return (batches, took_s, cpu_s) if batches else None

    def remove(self) -> None:
        """Restores the method, unless another tool has replaced it since."""
        if vars(multiprocessing.reduction.ForkingPickler)["dumps"] is self._dumps:
            put_in_place(self._replaced)


def put_in_place(dumps: Any) -> None:
    """Has batches pickled by a class method."""
    multiprocessing.reduction.ForkingPickler.dumps = dumps  # type: ignore[method-assign]


class PickledBatches:
    """What workers of a loader took to pickle their batches, as that comes in."""

    def __init__(self) -> None:
        self._batches = 0
        self._took_s = 0.0
        self._cpu_s = 0.0

    def add(self, pickled: PickleTimes) -> dict[str, float] | None:
        """Adds what a worker has sent; returns the facts once enough is known, and None before and after."""
        if self._batches >= BATCHES:
            return None
        batches, took_s, cpu_s = pickled
        self._batches += batches
        self._took_s += took_s
        self._cpu_s += cpu_s
        if self._batches < BATCHES:
            return None
        return {
            "pickle_s": self._took_s / self._batches,
            "pickle_cpu_s": self._cpu_s / self._batches,
        }


@functools.cache
def pickling_clock(mark: bytes) -> PicklingClock:
    """Returns the clock of this process, a worker, which times its batches from the first call on."""
    return PicklingClock(mark)
