"""A batch with how it was made, on its way from where it is made to the loop that asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

TransformTimes = tuple[tuple[str, ...], int, tuple[float, ...]]
"""Of a Compose: names of its transforms in their order, how often it was called, seconds in each transform."""
FetchTimes = tuple[float, float, float, float, float, float, tuple[TransformTimes, ...]]
"""Seconds in the dataset, in transforms, in collate; moments of beginning and end; number of the worker (-1: none);
what each Compose did."""


def made_between(times: FetchTimes, since_s: float, until_s: float) -> float:
    """Returns for how long of a time, in seconds, a worker was not done with a batch; 0 in the loop's own process."""
    ended, worker = times[4], times[5]
    return 0.0 if worker < 0 or ended < since_s else min(ended, until_s) - since_s


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


class Laps:
    """A Compose that is called for the batch which is being made, and how long each of its transforms took so far."""

    __slots__ = ("calls", "compose", "names", "seconds")

    def __init__(self, compose: Any) -> None:
        self.compose = compose  # kept, so that another one cannot have its `id()` meanwhile
        self.calls = 0
        self.names: list[str] = []
        self.seconds: list[float] = []


class Making(threading.local):
    """What the batch that this thread makes has spent so far."""

    def __init__(self) -> None:
        self.collate_s = 0.0
        self.laps: dict[int, Laps] | None = None
        """By the `id()` of each Compose; None where no batch is being made, and within a Compose."""


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


def timed_fetch(fetch: Callable[[Any, Any], Any], worker: Callable[[], int]) -> Callable[[Any, Any], Any]:
    """Returns a fetcher's method `fetch` that gives a `Timed`; `worker()` is the number of the process it runs in.

    A fetcher that works for another one, in a dataset that reads from a DataLoader, gives the batch alone: its time is
    part of the other one's.
    """

    def fetch_timed(self: Any, index: Any) -> Any:
        making = MAKING
        if making.laps is not None:
            return fetch(self, index)
        making.collate_s = 0.0
        laps = making.laps = {}
        began = perf_counter()
        try:
            data = fetch(self, index)
        finally:
            making.laps = None
        ended = perf_counter()
        dataset_s = ended - began - making.collate_s
        transforms = _told(laps)
        transform_s = 0.0
        for _, _, seconds in transforms:
            transform_s += sum(seconds)
        return Timed(data, (dataset_s, transform_s, making.collate_s, began, ended, worker(), transforms))

    return fetch_timed


def _told(laps: dict[int, Laps]) -> tuple[TransformTimes, ...]:
    """Returns the times of each Compose; of those with the same transforms, as one made for each sample, their sum."""
    found: dict[tuple[str, ...], Laps] = {}
    for lap in laps.values():
        if not lap.calls:  # each of them failed in the middle, and the dataset went on
            continue
        names = tuple(lap.names)
        if (known := found.setdefault(names, lap)) is not lap:
            known.calls += lap.calls
            known.seconds = [a + b for a, b in zip(known.seconds, lap.seconds, strict=True)]
    return tuple([(names, lap.calls, tuple(lap.seconds)) for names, lap in found.items()])
