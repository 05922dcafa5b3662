"""The time of each transform, and the work of making batches, summed for each loader.

A batch has an entry for each of its `Compose`s, which have names: too much for an event of each batch.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from vitprof.watch.events import Description
from vitprof.watch.fetch_times import TransformTimes

DESCRIBED_EVERY_S = 3.0
UNSUMMED = 5
"""The first batches of a loader are not counted: they are a training's warm-up."""


@dataclass
class LoaderSums:
    """The batches of one loader so far."""

    number: int
    """Of its description."""
    batches: int = 0
    samples: int = 0
    composes: dict[tuple[str, ...], tuple[int, list[float]]] = field(default_factory=dict)
    """By the names of a Compose's transforms: its calls, and the seconds in each transform."""

    def add(self, made: Sequence[TransformTimes], samples: int) -> None:
        self.batches += 1
        if self.batches <= UNSUMMED:
            return
        self.samples += samples
        for names, calls, seconds in made:
            calls_before, before = self.composes.get(names, (0, [0.0] * len(names)))
            summed = [a + b for a, b in zip(before, seconds, strict=True)]
            self.composes[names] = (calls_before + calls, summed)

    def described(self, loader: int) -> Description:
        composes = [[list(names), *sums] for names, sums in self.composes.items()]
        facts: dict[str, Any] = {"loader": loader, "samples": self.samples, "composes": composes}
        return Description(self.number, "stages", facts)


class StageSums:
    """The sums of all loaders. The thread that trains adds to them, the one that sends reads them."""

    def __init__(self, numbers: itertools.count[int]) -> None:
        self._numbers = numbers
        self._new: deque[tuple[int, Sequence[TransformTimes], int]] = deque()
        self.add = self._new.append
        """Takes the loader's number, the entries of a batch, and its samples. Summing many at once takes
        a third of the time."""
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
                loader, made, samples = self._new.popleft()
                if loader not in self._sums:
                    self._sums[loader] = LoaderSums(next(self._numbers))
                self._sums[loader].add(made, samples)
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
