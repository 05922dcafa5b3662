"""Finds the samples of a data set that cannot be read, and reads a data set without them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitprof.engine.data import OnProgress, Stop
from vitprof.engine.data.source import Source
from vitprof.errors import JobStopped, SampleError


def find_unreadable(
    source: Source, needs: Literal["pixels", "encoded"], chunk: int, progress: OnProgress, stop: Stop
) -> dict[int, str]:
    """Returns number -> reason for each sample that cannot be read. Reads all samples, `chunk` at once.

    Raises `JobStopped` if `stop()` turns true.
    """
    read = source.pixels if needs == "pixels" else source.encoded
    found: dict[int, str] = {}
    n = len(source.ids)
    for start in range(0, n, chunk):
        if stop():
            raise JobStopped("stopped while looking for unreadable samples")
        try:
            read(start, min(start + chunk, n))
        except SampleError:
            for i in range(start, min(start + chunk, n)):
                try:
                    read(i, i + 1)
                except SampleError as error:
                    found[i] = str(error)
        progress(start / n, f"looking for unreadable samples, {len(found):,} found")
    return found


class Readable:
    """A source without some of its samples. The remaining ones are numbered from 0."""

    def __init__(self, source: Source, without: Collection[int]) -> None:
        self._source = source
        self._kept = np.setdiff1d(np.arange(len(source.ids)), np.fromiter(without, np.int64, len(without)))
        self.ids = [source.ids[i] for i in self._kept]
        self.labels: NDArray[np.int64] = source.labels[self._kept]

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        parts = [self._source.pixels(first, last) for first, last in self._runs(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def encoded(self, start: int, stop: int) -> list[bytes]:
        return [file for first, last in self._runs(start, stop) for file in self._source.encoded(first, last)]

    def _runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Returns the ranges [first, last) of the source that hold the kept samples [start, stop), in order."""
        kept = self._kept[start:stop]
        breaks = np.flatnonzero(np.diff(kept) != 1) + 1
        return [(int(run[0]), int(run[-1]) + 1) for run in np.split(kept, breaks)]
