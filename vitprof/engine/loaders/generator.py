"""The single-core generator: one sample after another, stacked when the batch is full. A baseline."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any

import torch

from vitprof.engine.batch import Batch
from vitprof.engine.loaders import Schedule
from vitprof.engine.loaders.batch_assembly import Maker
from vitprof.engine.loaders.samples import fetch
from vitprof.measure.batch_times import BatchTimes


class SampleGenerator:
    """A loader over a Dataset: index, transform, stack."""

    def __init__(self, schedule: Schedule, samples: Any, collate: Callable[[Any], Any]) -> None:
        self._schedule, self._samples, self._collate = schedule, samples, collate

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        for indices in self._schedule.batches(epoch):
            yield Batch(*self._collate(fetch(self._samples, indices.tolist())))

    def close(self) -> None:
        return


class TimedGenerator:
    """A loader over a storage of pixels or encoded images: read, decode, stack."""

    def __init__(self, schedule: Schedule, make: Maker) -> None:
        self._schedule, self._make = schedule, make
        self._make_another = make.punctual()  # a deliberate wait is added once to the batch, not to each sample

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        for indices in self._schedule.batches(epoch):
            first, *others = indices.split(1)  # type: ignore[no-untyped-call]
            yield _joined([self._make(epoch, first), *(self._make_another(epoch, index) for index in others)])

    def close(self) -> None:
        return


def _joined(samples: list[Batch]) -> Batch:
    """Returns batches of one sample each, joined into one batch. Its stage times are the sums of theirs."""
    begun = perf_counter()
    images = torch.cat([sample.images for sample in samples])
    labels = torch.cat([sample.labels for sample in samples])
    unreadable: tuple[str, ...] = sum((sample.unreadable for sample in samples), ())
    each = [sample.made for sample in samples if sample.made is not None]
    if not each:
        return Batch(images, labels, unreadable)
    end = perf_counter()
    read_s, decode_s, transform_s, collate_s = (sum(made[part] for made in each) for part in range(4))
    made = BatchTimes(read_s, decode_s, transform_s, collate_s + end - begun, each[0].start_s, end)
    return Batch(images, labels, unreadable, made)
