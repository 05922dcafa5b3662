"""The single-core generator: one sample after another, stacked when the batch is full. A baseline."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from vitprof.batch import Batch
from vitprof.config import RunConfig
from vitprof.errors import SampleError
from vitprof.loaders import Schedule
from vitprof.loaders.making import Maker, collate_readable


class SampleGenerator:
    """Over a Dataset: index, transform, stack."""

    def __init__(self, schedule: Schedule, samples: Any, config: RunConfig) -> None:
        self._schedule, self._samples, self._skip = schedule, samples, config.skip_unreadable

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        for indices in self._schedule.batches(epoch):
            samples, unreadable = [], []
            for index in indices.tolist():
                try:
                    samples.append(self._samples[index])
                except SampleError as error:
                    if not self._skip:
                        raise
                    unreadable.append(str(error))
            yield collate_readable(samples, unreadable)

    def close(self) -> None:
        return


class MadeGenerator:
    """Over a storage of pixels or encoded images: read, decode, stack."""

    def __init__(self, schedule: Schedule, make: Maker) -> None:
        self._schedule, self._make = schedule, make

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        for indices in self._schedule.batches(epoch):
            made = [self._make(epoch, index) for index in indices.split(1)]  # type: ignore[no-untyped-call]
            yield Batch(
                torch.cat([batch.images for batch in made]),
                torch.cat([batch.labels for batch in made]),
                sum((batch.unreadable for batch in made), ()),
            )

    def close(self) -> None:
        return
