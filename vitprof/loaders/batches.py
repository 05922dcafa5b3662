"""The whole-batch reader: each batch is one read of the storage, in the training loop."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from vitprof.loaders import epoch_order
from vitprof.records import RunConfig
from vitprof.storage import Batch, Storage


class BatchReader:
    """Draws an order for each epoch and reads it off in slices of `batch_size`."""

    def __init__(self, storage: Storage, config: RunConfig, train: bool) -> None:
        self._storage = storage
        self._batch_size = config.batch_size
        self._seed = config.seed
        self._shuffle = train

    def __len__(self) -> int:
        return math.ceil(len(self._storage) / self._batch_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        n = len(self._storage)
        order = epoch_order(n, self._seed, epoch) if self._shuffle else torch.arange(n)
        for indices in order.to(self._storage.device).split(self._batch_size):  # type: ignore[no-untyped-call]
            yield self._storage.read_batch(indices)

    def close(self) -> None:
        return
