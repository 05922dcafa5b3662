"""A Dataset of samples, as a DataLoader or a generator uses it: with unreadable samples left out, and every part timed.

The Dataset's own code is unchanged, since tutorials show it in that form. Each batch is timed around it, and the
storage times stages inside it (`vitprof.engine.storage.SampleStorage.dataset`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from vitprof.config import RunConfig
from vitprof.engine.loaders.contract import Batch
from vitprof.errors import SampleError
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import Stopwatch, Wait, asked_wait


class Skipping(Dataset[Any]):
    """A Dataset that returns the error message in place of a sample that cannot be read."""

    def __init__(self, samples: Dataset[Any]) -> None:
        self._samples = samples

    def __getitem__(self, index: int) -> Any:
        try:
            return self._samples[index]
        except SampleError as error:
            return str(error)


def collate_skipping(samples: list[Any]) -> Batch:
    """Returns a batch of the samples that could be read, with the messages of the others; it may be empty."""
    unreadable = tuple(sample for sample in samples if isinstance(sample, str))
    if len(unreadable) == len(samples):
        return Batch(torch.empty(0), torch.empty(0, dtype=torch.int64), unreadable)
    if unreadable:
        samples = [sample for sample in samples if not isinstance(sample, str)]
    images, labels = default_collate(samples)
    return Batch(images, labels, unreadable)


class Fetched(NamedTuple):
    """The samples of a batch, and how long making them took, in seconds."""

    samples: list[Any]
    begun_s: float
    """When work on them began, on the host's monotonic clock."""
    read_s: float
    """NaN, as the next two, where the Dataset does not tell."""
    decode_s: float
    transform_s: float


class TimedSamples(Dataset[Any]):
    """A Dataset that makes all samples of a batch in one call, so that it can time them."""

    def __init__(self, samples: Dataset[Any], stopwatch: Stopwatch) -> None:
        self._samples, self._stopwatch = samples, stopwatch

    def __getitems__(self, indices: list[int]) -> Fetched:
        begun = perf_counter()
        stopwatch = self._stopwatch
        stopwatch.restart()
        stopwatch.wait_for_rest()
        samples = fetch(self._samples, indices)
        stopwatch.end_rest(begun)
        if not stopwatch.noted and not stopwatch.rest:  # the Dataset times nothing
            return Fetched(samples, begun, math.nan, math.nan, math.nan)
        return Fetched(samples, begun, stopwatch.read_s, stopwatch.decode_s, stopwatch.transform_s)


class TimedCollate:
    """A collate function for what `TimedSamples` returns: calls another one and times it, if `tell`."""

    def __init__(self, collate: Callable[[list[Any]], Any], wait: Wait | None, *, tell: bool) -> None:
        self._collate, self._wait, self._tell = collate, wait, tell

    def __call__(self, fetched: Fetched) -> Batch:
        begun = perf_counter()
        if self._wait is not None:
            self._wait.into("collate")
        images, labels, *unreadable = self._collate(fetched.samples)
        if not self._tell:
            return Batch(images, labels, *unreadable[:1])
        end = perf_counter()
        parts = fetched.read_s, fetched.decode_s, fetched.transform_s, end - begun
        made = BatchTimes(*parts, fetched.begun_s, end, worker_number())
        return Batch(images, labels, unreadable[0] if unreadable else (), made)


def worker_number() -> float:
    """Returns the number of this DataLoader worker; NaN in a process that is not a worker."""
    worker = get_worker_info()
    return math.nan if worker is None else worker.id


def fetch(samples: Any, indices: list[int]) -> Any:
    """Returns the samples at `indices` as a DataLoader fetches them: with `__getitems__` if the Dataset has it."""
    at_once: Callable[[list[int]], Any] | None = getattr(samples, "__getitems__", None)
    return [samples[index] for index in indices] if at_once is None else at_once(indices)


def open_samples(
    storage: Any, config: RunConfig, *, train: bool
) -> tuple[Dataset[Any], Callable[[Any], Batch | list[Any]]]:
    """Returns the Dataset of a storage of form "samples" and its collate function, for the resolved `config`.

    With nothing to time, to delay or to skip, these are the storage's own Dataset and PyTorch's `default_collate`.
    """
    wait = asked_wait(config, train=train)
    stopwatch = Stopwatch(wait) if config.loader_times or wait is not None else None
    samples: Dataset[Any] = storage.dataset() if stopwatch is None else storage.dataset(stopwatch)
    collate: Callable[[Any], Any] = default_collate
    if config.skip_unreadable:
        samples, collate = Skipping(samples), collate_skipping
    if stopwatch is not None:
        return TimedSamples(samples, stopwatch), TimedCollate(collate, wait, tell=config.loader_times)
    return samples, collate
