"""A pool of threads that reads, decodes and crops outside Python's lock, each image straight into its batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from vitprof.batch import Batch
from vitprof.config import RunConfig
from vitprof.loaders import Buffer, Schedule
from vitprof.loaders.making import EncodedMaker

TASKS_A_WORKER = 4
"""Pieces of a batch for each thread: small enough that none waits long for the last, large enough for a task."""


@dataclass
class UnderWay:
    """A batch that is being filled."""

    indices: Tensor
    out: Tensor
    pieces: list[Future[list[str]]]


class Epoch:
    """The batches of one epoch that are under way."""

    def __init__(self) -> None:
        self.under_way: deque[UnderWay] = deque()
        self.broken_off = threading.Event()

    def drain(self) -> None:
        """Cancel what has not begun and wait for what has: nobody writes into a batch afterwards."""
        self.broken_off.set()
        for batch in self.under_way:
            for piece in batch.pieces:
                piece.cancel()
        for batch in self.under_way:
            for piece in batch.pieces:
                if not piece.cancelled():
                    piece.exception()
        self.under_way.clear()


class ThreadsLoader:
    """Keeps `prefetch_factor` batches under way with `workers` threads."""

    def __init__(self, schedule: Schedule, make: EncodedMaker, config: RunConfig, buffer: Buffer | None) -> None:
        self._schedule, self._make, self._buffer = schedule, make, buffer
        self._workers = config.workers or 1
        self._depth = config.prefetch_factor or 1
        self._pool = ThreadPoolExecutor(self._workers, "vitprof-decode", initializer=_one_torch_thread)
        self._epoch = Epoch()
        # A thread that sets its number of threads before this one has asked for its own would set this one's too.
        torch.get_num_threads()

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._epoch.drain()
        # One of its own, which alone it drains: an iterator of an earlier epoch may be closed late.
        mine = self._epoch = Epoch()
        under_way = mine.under_way
        try:
            for indices in self._schedule.batches(epoch):
                under_way.append(self._begin(epoch, indices, mine.broken_off))
                if len(under_way) == self._depth + 1:
                    yield self._finish(under_way)
            while under_way:
                yield self._finish(under_way)
        finally:
            mine.drain()

    def _begin(self, epoch: int, indices: Tensor, broken_off: threading.Event) -> UnderWay:
        shape = (len(indices), *self._make.shape)
        out = torch.empty(shape, dtype=torch.uint8) if self._buffer is None else self._buffer(shape)
        rows, chosen = out.numpy(), indices.tolist()
        piece = max(1, -(-len(chosen) // (self._workers * TASKS_A_WORKER)))

        def fill(start: int) -> list[str]:
            stop = start + piece
            return [] if broken_off.is_set() else self._make.fill(epoch, chosen[start:stop], rows[start:stop])

        return UnderWay(indices, out, [self._pool.submit(fill, start) for start in range(0, len(chosen), piece)])

    def _finish(self, under_way: deque[UnderWay]) -> Batch:
        batch = under_way[0]  # until it is done: if a piece fails, the others still write into it
        wrong = [line for piece in batch.pieces for line in piece.result()]
        under_way.popleft()
        return self._make.finish(batch.indices, batch.out, wrong)

    def close(self) -> None:
        self._epoch.drain()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _one_torch_thread() -> None:
    """Decoders that use torch would otherwise start a pool of OpenMP threads in each thread."""
    torch.set_num_threads(1)
