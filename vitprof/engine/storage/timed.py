"""Replacements for a Dataset's transforms and open files that note how long these took."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, BinaryIO

from vitprof.measure.stopwatch import Stopwatch


class TimedCompose:
    """A `Compose` as torchvision's that also notes the seconds. Can be pickled if the transforms can.

    It replaces torchvision's instead of wrapping it: one more call for each sample would cost more than the clock.
    """

    def __init__(self, compose: Any, stopwatch: Stopwatch) -> None:
        self.transforms: list[Callable[[Any], Any]] = compose.transforms
        self._stopwatch = stopwatch

    def __call__(self, sample: Any) -> Any:
        begun, stopwatch = perf_counter(), self._stopwatch
        if stopwatch.due is not None:
            stopwatch.wait("transform")
        for transform in self.transforms:
            sample = transform(sample)
        stopwatch.transform_s += perf_counter() - begun
        return sample


class TimedFile:
    """A file that notes the seconds of each `read`; everything else is the file's own.

    This separates reading from decoding in a decoder that reads as it goes, such as Pillow, without changing how it
    reads.
    """

    def __init__(self, file: BinaryIO, stopwatch: Stopwatch) -> None:
        self._file, self._stopwatch = file, stopwatch
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        begun = perf_counter()
        data = self._file.read(size)
        self._stopwatch.read_s += perf_counter() - begun
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
