"""The samples that take several times as long as the others, and in which steps they came.

The watched processes know only of their own samples which are slow; here the median of all is known.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitprof.watch.core.loop import Step
from vitprof.watch.core.stages import KIND
from vitprof.watch.events import Description
from vitprof.watch.time_sketch import SLOW, median_within_s, middle_s, quantile_s

MOST_LISTED = 50
"""Samples that a run lists: those that took longest in all."""
MOST_INDICES = 500
"""Slow samples whose index is kept: whether every k-th is slow shows in few."""
MOST_KEPT = 2_000
"""Samples that are kept meanwhile: a set may have any number of slow ones."""
MOST_TIMES = 16
"""Steps that are listed of a sample, the slowest."""


@dataclass(slots=True)
class SampleTotals:
    """What is known of one sample."""

    times: int = 0
    """How often it was slow."""
    total_s: float = 0.0
    """How long the dataset took for it all these times."""
    longest: list[tuple[float, int]] = field(default_factory=list)
    """The seconds and the step of each of the longest times."""

    def add(self, step: int, took_s: float) -> None:
        self.times += 1
        self.total_s += took_s
        self.longest.append((took_s, step))
        if len(self.longest) > 2 * MOST_TIMES:
            self.longest = heapq.nlargest(MOST_TIMES, self.longest)


class SlowSamples:
    """The slow samples of the steps so far."""

    def __init__(self) -> None:
        self._samples: dict[int, SampleTotals] = {}
        self._told: tuple[Description, ...] = ()
        self._facts: dict[str, Any] = {}

    def add(self, number: int, step: Step) -> None:
        """Adds a step after the warm-up, by its number in the run."""
        for fetch in step.fetches:
            for index, took_s in fetch.slow_samples:
                self._samples.setdefault(index, SampleTotals()).add(number, took_s)
        if len(self._samples) > 2 * MOST_KEPT:
            self._samples = dict(self._longest(MOST_KEPT))

    def facts(
        self, described: Iterable[Description], feeding: Collection[int], *, finished: bool
    ) -> dict[str, Any]:
        """Returns the fact "slow_samples" of the loaders `feeding`; nothing where no samples were timed.

        It is made anew when the process has described its loaders again, every few seconds.
        """
        sums = tuple(
            one for one in described if one.kind == KIND and one.facts["loader"] in feeding
        )
        if sums != self._told or finished:
            self._told = sums
            self._facts = self._made([one.facts for one in sums])
        return self._facts

    def _made(self, sums: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        buckets = Counter[int]()
        of_workers: dict[int, Counter[int]] = {}
        files: dict[int, tuple[str, int | None]] = {}
        for of_loader in sums:
            buckets.update(_counted(of_loader.get("buckets", ())))
            for worker, made in of_loader.get("of_workers", ()):
                of_workers.setdefault(int(worker), Counter()).update(_counted(made))
            files |= {int(index): (file, size) for index, file, size in of_loader.get("files", ())}
        if not buckets:
            return {}
        median_s = quantile_s(buckets, 0.5)
        listed = []
        slow: dict[int, SampleTotals] = {}
        for index, sample in self._longest(MOST_INDICES):
            longest = heapq.nlargest(MOST_TIMES, sample.longest)
            if longest[0][0] < SLOW * median_s:
                continue
            slow[index] = sample
            if len(slow) > MOST_LISTED:
                continue
            file, size = files.get(index, ("", None))
            listed.append(
                {
                    "index": index,
                    "times": sample.times,
                    "total_s": sample.total_s,
                    "longest_s": [took_s for took_s, _ in longest],
                    "steps": [step for _, step in longest],
                    "file": file,
                    "file_bytes": size,
                }
            )
        fact = {
            "timed": sum(buckets.values()),
            "median_s": median_s,
            "p99_s": quantile_s(buckets, 0.99),
            "listed": listed,
            "indices": list(slow),
            "indices_times": [sample.times for sample in slow.values()],
            "indices_longest_s": [max(sample.longest)[0] for sample in slow.values()],
            "sketch": [[middle_s(bucket), n] for bucket, n in sorted(buckets.items())],
            "workers": [
                {"worker": worker, "timed": sum(made.values()), "median_s": median_within_s(made)}
                for worker, made in sorted(of_workers.items())
            ],
        }
        return {"slow_samples": fact}

    def _longest(self, most: int) -> list[tuple[int, SampleTotals]]:
        """Returns the samples that took longest in all."""
        return heapq.nlargest(most, self._samples.items(), key=lambda item: item[1].total_s)


def _counted(buckets: Iterable[Sequence[int]]) -> Counter[int]:
    """Returns a sketch that was sent as pairs."""
    return Counter({int(bucket): int(n) for bucket, n in buckets})
