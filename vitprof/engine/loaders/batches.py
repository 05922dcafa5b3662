"""The whole-batch reader: each batch is one read of the storage, in the training loop."""

from __future__ import annotations

from collections.abc import Generator

from vitprof.engine.batch import Batch
from vitprof.engine.loaders import Buffer, Schedule
from vitprof.engine.loaders.batch_assembly import Maker


class BatchReader:
    """A loader that makes each batch when the loop asks for it, in the loop's thread."""

    def __init__(self, schedule: Schedule, make: Maker, buffer: Buffer | None) -> None:
        self._schedule, self._make, self._buffer = schedule, make, buffer

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        make, buffer, shape = self._make, self._buffer, self._make.shape
        for indices in self._schedule.batches(epoch):
            yield make(epoch, indices, buffer((len(indices), *shape)) if buffer else None)

    def close(self) -> None:
        return
