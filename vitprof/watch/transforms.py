"""The time of each transform of the training data, summed over the batches of the train loader."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from vitprof.watch.fetch_times import TransformTimes

TELL_EVERY_S = 3.0


class TransformSums:
    """Seconds and calls of each transform so far. Composes with the same transforms are summed together.

    `add` and `tell` may be called in any thread.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], tuple[int, list[float]]] = {}
        self._to_add: deque[tuple[Sequence[TransformTimes], int]] = deque()
        """The times of batches since the last `tell`: summing many at once takes a third of the time."""
        self._samples = 0
        self._told_s = -math.inf
        self._telling = threading.Lock()

    def add(self, transforms: Sequence[TransformTimes], samples: int) -> None:
        """Adds the times of the Composes for a batch of `samples`."""
        if samples:
            self._to_add.append((transforms, samples))

    def _sum_up(self) -> None:
        while self._to_add:
            transforms, samples = self._to_add.popleft()
            self._samples += samples
            for names, calls, seconds in transforms:
                calls_before, before = self._found.get(names, (0, [0.0] * len(names)))
                self._found[names] = (calls_before + calls, [a + b for a, b in zip(before, seconds, strict=True)])

    def tell(self, facts: Callable[[dict[str, Any]], None], now_s: float = math.inf) -> None:
        """Sends the run's fact "transforms", if there are any: name -> seconds a sample, and calls.

        Sends at most every `TELL_EVERY_S`, or always if `now_s` is not given. Names are those of `composes.name_of` in
        the order of the Compose; the second of the same name is "Normalize (2)".
        """
        if now_s - self._told_s < TELL_EVERY_S:
            return
        with self._telling:
            self._sum_up()
            if self._found:
                self._told_s = now_s
                facts({"transforms": self._told()})

    def _told(self) -> dict[str, Any]:
        used: Counter[str] = Counter()
        told: dict[str, Any] = {}
        for names, (calls, seconds) in self._found.items():
            for name, took_s in zip(names, seconds, strict=True):
                used[name] += 1
                key = f"{name} ({used[name]})" if used[name] > 1 else name
                told[key] = {"s_per_sample": took_s / self._samples, "calls": calls}
        return told
