"""The time of each transform, the work of making batches and the times of samples, summed for each loader.

A batch has an entry for each of its `Compose`s, which have names: too much for an event of each batch.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from vitprof.watch.events import Description
from vitprof.watch.fetch_times import TransformTimes
from vitprof.watch.sample_times import SampleTimes

DESCRIBED_EVERY_S = 3.0
UNSUMMED = 5
"""The first batches of a loader are not counted: they are a training's warm-up."""
WARMING_UP = 2
"""Loaders of which that is so: one to train and one to validate. Later ones were made anew, as for each epoch, and may
have no more batches than these."""
MOST_FILES = 200
"""Slow samples whose files are kept, the slowest."""
Made = tuple[int, Sequence[TransformTimes], int, SampleTimes | None, float]
"""A batch that has come: its loader's number, its entries, its samples, their times, and the number of the worker that
made it (-1: none)."""


@dataclass
class LoaderSums:
    """The batches of one loader so far."""

    number: int
    """Of its description."""
    unsummed: int = UNSUMMED
    """Batches that are not counted, the first ones."""
    batches: int = 0
    samples: int = 0
    composes: dict[tuple[str, ...], tuple[int, list[float]]] = field(default_factory=dict)
    """By the names of a Compose's transforms: its calls, and the seconds in each transform."""
    buckets: Counter[int] = field(default_factory=Counter)
    """How many samples took how long (`time_sketch.bucket_of`)."""
    of_workers: dict[int, Counter[int]] = field(default_factory=dict)
    """The same by the number of the worker."""
    files: dict[int, tuple[float, str]] = field(default_factory=dict)
    """By the index of a slow sample: its longest time, and the file that the dataset opened for it."""

    def add(
        self,
        made: Sequence[TransformTimes],
        samples: int,
        each: SampleTimes | None,
        worker: float,
    ) -> None:
        self.batches += 1
        if self.batches <= self.unsummed:
            return
        self.samples += samples
        if each is not None:
            self._add_samples(each, int(worker))
        for names, calls, seconds in made:
            calls_before, before = self.composes.get(names, (0, [0.0] * len(seconds)))
            summed = [a + b for a, b in zip(before, seconds, strict=True)]
            self.composes[names] = (calls_before + calls, summed)

    def _add_samples(self, each: SampleTimes, worker: int) -> None:
        buckets, slow = each
        self.buckets.update(buckets)
        if worker >= 0:
            self.of_workers.setdefault(worker, Counter()).update(buckets)
        for index, took_s, file in slow:
            if file:
                longest_s, _ = self.files.get(index, (0.0, ""))
                self.files[index] = (max(longest_s, took_s), file)
        if len(self.files) > 2 * MOST_FILES:
            slowest = heapq.nlargest(MOST_FILES, self.files.items(), key=lambda item: item[1])
            self.files = dict(slowest)

    def described(self, loader: int) -> Description:
        composes = [[list(names), *sums] for names, sums in self.composes.items()]
        facts: dict[str, Any] = {"loader": loader, "samples": self.samples, "composes": composes}
        if self.buckets:
            facts["buckets"] = sorted(self.buckets.items())
            facts["of_workers"] = [
                [worker, sorted(buckets.items())]
                for worker, buckets in sorted(self.of_workers.items())
            ]
            slowest = heapq.nlargest(MOST_FILES, self.files.items(), key=lambda item: item[1])
            facts["files"] = [[index, file, bytes_of(file)] for index, (_, file) in slowest]
        return Description(self.number, "stages", facts)


@functools.lru_cache(maxsize=4 * MOST_FILES)
def bytes_of(file: str) -> int | None:
    """Returns the size of a file; None where it is gone, or no file."""
    try:
        return os.stat(file).st_size
    except (OSError, ValueError):
        return None


class StageSums:
    """The sums of all loaders. The thread that trains adds to them, the one that sends reads them."""

    def __init__(self, numbers: itertools.count[int]) -> None:
        self._numbers = numbers
        self._new: deque[Made] = deque()
        self.add = self._new.append
        """Takes a batch. Summing many at once takes a third of the time."""
        self._sums: dict[int, LoaderSums] = {}
        self._described_s = 0.0
        self._summing = threading.Lock()

    def described(self, *, at_end: bool) -> list[Description]:
        """Returns the sums of the loaders that have any, at most every `DESCRIBED_EVERY_S`."""
        now_s = perf_counter()
        if not at_end and now_s < self._described_s + DESCRIBED_EVERY_S:
            return []
        with self._summing:
            changed = set[int]()
            while self._new:
                loader, made, samples, each, worker = self._new.popleft()
                if loader not in self._sums:
                    unsummed = UNSUMMED if len(self._sums) < WARMING_UP else 0
                    self._sums[loader] = LoaderSums(next(self._numbers), unsummed)
                self._sums[loader].add(made, samples, each, worker)
                changed.add(loader)
            descriptions = [self._sums[loader].described(loader) for loader in sorted(changed)]
        if descriptions:
            self._described_s = now_s
        return descriptions

    def forget(self) -> None:
        """Drops everything, as for another process."""
        self._new.clear()
        self._sums.clear()
        self._summing = threading.Lock()
