"""Loaders: they make batches, each in its own threads or processes. One file each, by the names of `parts.LOADERS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, Protocol

import torch
from torch import Tensor

from vitprof.config import RunConfig
from vitprof.config.catalog import DatasetInfo
from vitprof.config.parts import STORAGES
from vitprof.engine.batch import Batch
from vitprof.engine.loaders.order import BLOCK_SAMPLES, epoch_order
from vitprof.measure.devices import Mark

Buffer = Callable[[tuple[int, ...]], Tensor]
"""Returns memory (uint8, of the given shape) for a batch. The giver of the memory knows when it can be used again."""


class Loader(Protocol):
    """A source of the batches of a split, epoch by epoch."""

    def __len__(self) -> int:
        """Returns the number of batches in an epoch; the last one may be smaller."""

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        """Yields the batches of one epoch: each sample exactly once, in `epoch_order` when training, else as stored.

        Closing the iterator ends the epoch early; the next epoch is complete again. A batch stays valid until the next
        but one is requested. Where unreadable samples are skipped a batch has fewer samples, or none if none of them
        could be read.
        """

    def close(self) -> None:
        """Ends worker processes and threads. The loader cannot be used afterwards."""


class Schedule:
    """The order of an epoch, cut into batches."""

    def __init__(self, storage: Any, config: RunConfig, *, train: bool) -> None:
        self.n = len(storage)
        self.batch_size = config.batch_size
        self._seed = config.seed
        self._shuffle = (config.shuffle or "full") if train else "none"
        self._block = getattr(storage, "block", BLOCK_SAMPLES)
        # A resident storage needs indices on its own device: they are copied there once for each epoch.
        self._device: torch.device = getattr(storage, "device", torch.device("cpu"))

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def batches(self, epoch: int) -> tuple[Tensor, ...]:
        """Returns the indices of each batch, (b,) int64; only the last may be smaller than `batch_size`."""
        order = epoch_order(self.n, self._seed, epoch, self._shuffle, self._block).to(self._device)
        return order.split(self.batch_size)  # type: ignore[no-untyped-call, no-any-return]


def open_loader(
    storage: Any,
    info: DatasetInfo,
    config: RunConfig,
    *,
    train: bool,
    buffer: Buffer | None = None,
    mark: Callable[[], Mark] | None = None,
) -> Loader:
    """Starts the loader that the resolved `config` names over one split, in `storage`.

    `buffer` gives the memory for batches made in this process; without it each batch gets new memory. `mark` is that of
    the training device, for loaders that make batches on it (`Batch.decoded`); None if their time is not measured.
    """
    from vitprof.engine.loaders import ahead, batch_assembly, batches, dataloader, generator, samples, threads

    if config.loader == "dali":
        from vitprof.engine.loaders import dali

        return dali.DaliLoader(storage, info, config, train=train, mark=mark)
    schedule = Schedule(storage, config, train=train)
    form = STORAGES[config.storage or ""].form
    if config.loader == "dataloader":
        values = info.channels * info.image_size**2
        dataloader.ensure_shared_memory(config, values * (4 if form == "samples" else 1))
    if form == "samples":
        dataset, collate = samples.open_samples(storage, config, train=train)
        if config.loader == "generator":
            return generator.SampleGenerator(schedule, dataset, collate)
        return dataloader.over_samples(schedule, dataset, collate, config)
    make = batch_assembly.open_maker(storage, info, config, train=train)
    if config.loader == "dataloader":
        return dataloader.over_batches(schedule, make, config)
    if config.loader == "generator":
        return generator.TimedGenerator(schedule, make)
    if config.loader == "threads":
        assert isinstance(make, batch_assembly.EncodedMaker)
        return threads.ThreadsLoader(schedule, make, config, buffer)
    reader = batches.BatchReader(schedule, make, buffer)
    return ahead.AheadReader(reader, config) if config.loader == "ahead" else reader
