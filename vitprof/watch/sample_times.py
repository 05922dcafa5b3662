"""How long a dataset takes for each sample: a sketch of all times, and the slow samples by their index.

Runs in the loop's process and in its workers, for each sample, so it must take little.
"""

from __future__ import annotations

import heapq
import math
import operator
import os
from collections import Counter
from time import perf_counter
from typing import Any

from vitprof.watch.time_sketch import SLOW, bucket_of, quantile_s

SlowSample = tuple[int, float, str]
"""Its index in the dataset, the seconds that the dataset took for it, and the file that it opened last; "" where
none was seen."""
SampleTimes = tuple[dict[int, int], tuple[SlowSample, ...]]
"""Of the samples of a batch: how many there are in each bucket (`time_sketch`), and the slow ones."""

LEAST_SAMPLE_S = 100e-6
"""From so many seconds a sample on, on average, each sample is timed: that takes 1 us, 1% of this."""
LONG_BATCH_S = 5e-3
"""From so many seconds a batch on it is looked at how long its thread waited for a core: that takes 10 us."""
MOST_SLOW = 8
"""Slow samples of a batch that are sent, the slowest."""


class SampleTimer:
    """Passes for a fetcher's dataset while that makes a batch, and notes the time of each sample.

    `opening` notes in its attribute `file` what its thread opens.
    """

    def __init__(self, dataset: Any, opening: Any) -> None:
        self._dataset = dataset
        self._opening = opening
        self.noted: list[tuple[Any, float, Any]] = []
        """Index, seconds and the file that was opened last."""
        self.queued_s = math.nan
        """How long its thread had waited for a core before, where that is looked at."""

    def __getitem__(self, index: Any) -> Any:
        opening = self._opening
        opening.file = None
        began_s = perf_counter()
        sample = self._dataset[index]
        self.noted.append((index, perf_counter() - began_s, opening.file))
        return sample

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":  # that of a Subset, which fetches one by one as well
            raise AttributeError(name)
        return getattr(object.__getattribute__(self, "_dataset"), name)


class SampleClock:
    """Times the samples of one fetcher, as long as they take long enough."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._buckets = Counter[int]()
        self._samples = 0
        self._seconds = 0.0
        self.is_worth_it = True
        """Whether the samples so far took so long that the clock does not matter. The first batch is timed
        anyway: many loaders have new workers in each epoch."""

    def add_batch(self, samples: int, seconds: float) -> None:
        """Notes a batch: how long the dataset took for all its samples."""
        self._samples += samples
        self._seconds += seconds
        self.is_worth_it = self._seconds > LEAST_SAMPLE_S * self._samples

    def takes_long(self, samples: int) -> bool:
        """Returns whether so many samples take so long that it may be looked at for how long they wait for a core;
        of the first ones nobody knows."""
        is_first = not self._samples
        return is_first or self._seconds * samples > LONG_BATCH_S * self._samples

    def times_of(self, timed: SampleTimer, queued_s: float = 0.0) -> SampleTimes | None:
        """Returns the times of a batch; None where the fetcher asked for no sample by a number.

        `queued_s`: how long its thread waited for a core meanwhile. Whatever sample that fell into seems slow: one that
        would not be without all of it counts as a usual one.
        """
        if not timed.noted:
            return None
        of_batch = Counter([bucket_of(seconds) for _, seconds, _ in timed.noted])
        self._buckets.update(of_batch)
        median_s = quantile_s(self._buckets, 0.5)
        slow_s = SLOW * median_s
        slow = [noted for noted in timed.noted if noted[1] > slow_s]
        if queued_s and slow:
            held_up = [bucket_of(seconds) for _, seconds, _ in slow if seconds - queued_s <= slow_s]
            for buckets in (of_batch, self._buckets):
                buckets.subtract(held_up)
                buckets[bucket_of(median_s)] += len(held_up)
            of_batch = +of_batch
            slow = [noted for noted in slow if noted[1] - queued_s > slow_s]
        if len(slow) > MOST_SLOW:
            slow = heapq.nlargest(MOST_SLOW, slow, key=operator.itemgetter(1))
        named = [
            (_original(self._dataset, index), took_s, _path(file)) for index, took_s, file in slow
        ]
        return dict(of_batch), tuple(
            [(i, took_s, file) for i, took_s, file in named if i is not None]
        )


def clock_for(dataset: Any) -> SampleClock | None:
    """Returns a clock for a dataset whose samples are fetched one by one; None for one that makes a whole batch
    at once."""
    base = dataset
    while _is_subset(base):
        base = base.dataset
    is_by_batch = callable(getattr(base, "__getitems__", None))
    return None if is_by_batch or not hasattr(base, "__getitem__") else SampleClock(dataset)


def _is_subset(dataset: Any) -> bool:
    """Returns whether it is PyTorch's own `Subset`: what one derived from that does is not known."""
    kind = type(dataset)
    return kind.__name__ == "Subset" and kind.__module__ == "torch.utils.data.dataset"


def _original(dataset: Any, index: Any) -> int | None:
    """Returns the index in the dataset that Subsets are of; None where it is no number."""
    try:
        while _is_subset(dataset):
            index = dataset.indices[index]
            dataset = dataset.dataset
        return operator.index(index)
    except (TypeError, IndexError, KeyError):
        return None


def _path(file: Any) -> str:
    """Returns the name of a file as `open` was given it; "" for a descriptor, and for none."""
    try:
        return os.path.abspath(os.fsdecode(file))
    except (TypeError, ValueError, OSError):
        return ""
