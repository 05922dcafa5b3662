"""A batch and the times in which it was made, on the way from the fetcher to the loop that requested it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

TransformTimes = tuple[tuple[str, ...], int, tuple[float, ...]]
"""For one Compose: the names of its transforms in order, the number of its calls, the seconds in each transform."""
FetchTimes = tuple[float, float, float, float, float, float, tuple[TransformTimes, ...]]
"""Seconds in the dataset (with transforms), in transforms, in collate; begin and end (s, monotonic clock); number of
the worker (-1: none); the times of each Compose."""


def made_between(times: FetchTimes, since_s: float, until_s: float) -> float:
    """Returns how long (s) between `since_s` and `until_s` a worker was still making the batch; 0 without a worker."""
    ended, worker = times[4], times[5]
    return 0.0 if worker < 0 or ended < since_s else min(ended, until_s) - since_s


class Timed:
    """A batch and its times. It passes through a worker's queue and the pinning thread as a batch does."""

    __slots__ = ("data", "times")

    def __init__(self, data: Any, times: FetchTimes) -> None:
        self.data, self.times = data, times

    def __reduce__(self) -> tuple[type[Timed], tuple[Any, FetchTimes]]:
        return Timed, (self.data, self.times)

    def pin_memory(self) -> Timed:
        """Pins the batch: PyTorch's pinning thread calls this method of any object that has it."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.data = pin_memory(self.data)  # type: ignore[no-untyped-call]
        return self


class Laps:
    """The times of each transform of one Compose so far, for the batch that is being made."""

    __slots__ = ("calls", "compose", "names", "seconds")

    def __init__(self, compose: Any) -> None:
        self.compose = compose  # kept, so that no other one can get its `id()` meanwhile
        self.calls = 0
        self.names: list[str] = []
        self.seconds: list[float] = []


class Making(threading.local):
    """The times so far of the batch that this thread is making."""

    def __init__(self) -> None:
        self.collate_s = 0.0
        self.laps: dict[int, Laps] | None = None
        """Times by the `id()` of each Compose; None where no batch is being made, and inside a Compose."""


MAKING = Making()


class TimedCollate:
    """A collate function that records its time."""

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


def timed_fetch(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a replacement for a fetcher's method `fetch` that returns a `Timed`. The fetcher's `_vitprof_worker` is
    the number of its worker, -1 without one.

    A fetcher inside another one, in a dataset that reads from a DataLoader, returns the plain batch: its time is part
    of the outer one's.
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
        collate_s, transform_s = making.collate_s, 0.0
        transforms: tuple[TransformTimes, ...] = ()
        if laps:
            transforms = _told(laps)
            for _, _, seconds in transforms:
                transform_s += sum(seconds)
        dataset_s = ended - began - collate_s
        return Timed(data, (dataset_s, transform_s, collate_s, began, ended, self._vitprof_worker, transforms))

    return fetch_timed


def _told(laps: dict[int, Laps]) -> tuple[TransformTimes, ...]:
    """Returns the times of each Compose; sums those with the same transforms, such as one made for each sample."""
    if len(laps) == 1:  # most datasets have one, and this runs once for each batch
        (lap,) = laps.values()
        return ((tuple(lap.names), lap.calls, tuple(lap.seconds)),) if lap.calls else ()
    found: dict[tuple[str, ...], Laps] = {}
    for lap in laps.values():
        if not lap.calls:  # every call failed, and the dataset caught the error
            continue
        names = tuple(lap.names)
        if (known := found.setdefault(names, lap)) is not lap:
            known.calls += lap.calls
            known.seconds = [a + b for a, b in zip(known.seconds, lap.seconds, strict=True)]
    return tuple([(names, lap.calls, tuple(lap.seconds)) for names, lap in found.items()])
