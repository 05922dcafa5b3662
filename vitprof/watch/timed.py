"""A batch with how it was made, on its way from where it is made to the loop that asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

FetchTimes = tuple[float, float, float, float, float, float]
"""Seconds in the dataset, in transforms, in collate; moments of beginning and end; number of the worker (-1: none)."""


class Timed:
    """What a fetcher made, and when. Passes through a worker's queue and the pinning thread as a batch does."""

    __slots__ = ("data", "times")

    def __init__(self, data: Any, times: FetchTimes) -> None:
        self.data, self.times = data, times

    def __reduce__(self) -> tuple[type[Timed], tuple[Any, FetchTimes]]:
        return Timed, (self.data, self.times)

    def pin_memory(self) -> Timed:
        """PyTorch's pinning thread calls this of whatever has it."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.data = pin_memory(self.data)  # type: ignore[no-untyped-call]
        return self


class Making(threading.local):
    """Seconds that the batch which this thread makes has spent so far in transforms and in collate."""

    def __init__(self) -> None:
        self.transform_s = self.collate_s = 0.0
        self.depth = 0
        """Transforms under way: one that calls others is counted once."""


MAKING = Making()


class TimedCollate:
    """A collate function that notes how long it took."""

    __slots__ = ("_collate",)

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        began = perf_counter()
        batch = self._collate(samples)
        MAKING.collate_s += perf_counter() - began
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_collate"), name)


def timed_fetch(fetch: Callable[[Any, Any], Any], worker: Callable[[], int]) -> Callable[[Any, Any], Timed]:
    """Returns a fetcher's method `fetch` that gives a `Timed`; `worker()` is the number of the process it runs in."""

    def fetch_timed(self: Any, index: Any) -> Timed:
        making = MAKING
        making.transform_s = making.collate_s = 0.0
        began = perf_counter()
        data = fetch(self, index)
        ended = perf_counter()
        dataset_s = ended - began - making.collate_s
        return Timed(data, (dataset_s, making.transform_s, making.collate_s, began, ended, worker()))

    return fetch_timed


def timed_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method `call` of a class of transforms, counted as transforming; within another one only once."""

    def call_timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        making = MAKING
        if making.depth:
            return call(self, *args, **kwargs)
        making.depth = 1
        began = perf_counter()
        try:
            return call(self, *args, **kwargs)
        finally:
            making.transform_s += perf_counter() - began
            making.depth = 0

    return call_timed
