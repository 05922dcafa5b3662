"""A pool of threads that read, decode and crop outside Python's lock, each image straight into its batch."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from vitprof.config import RunConfig
from vitprof.engine.loaders.batch_assembly import EncodedMaker
from vitprof.engine.loaders.contract import Batch, Buffer, Schedule
from vitprof.measure.stopwatch import Stopwatch

TASKS_A_WORKER = 4
"""Pieces of a batch for each thread: small enough that no thread waits long for the last, large enough to be worth a
task."""


@dataclass
class UnderWay:
    """A batch that is being filled."""

    indices: Tensor
    out: Tensor
    n_pieces: int
    pieces: list[Future[None]] = field(default_factory=list)
    batch: Batch | None = None
    """The finished batch, once all pieces are done."""
    _wrong: dict[int, list[str]] = field(default_factory=dict)
    _stopwatch: Stopwatch = field(default_factory=Stopwatch)
    _begun_s: float = math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def filled(
        self, make: EncodedMaker, number: int, wrong: list[str], stopwatch: Stopwatch | None, begun_s: float
    ) -> None:
        """Notes that a piece is done. After the last one it finishes the batch, ready before the loop asks for it."""
        with self._lock:
            self._wrong[number] = wrong
            self._begun_s = min(self._begun_s, begun_s)
            if stopwatch is not None:
                self._stopwatch.add(stopwatch)
            if len(self._wrong) < self.n_pieces:
                return
        lines = [line for i in range(self.n_pieces) for line in self._wrong[i]]
        self.batch = make.finish(self.indices, self.out, lines, self._stopwatch, self._begun_s)


class Epoch:
    """The batches of one epoch that are under way."""

    def __init__(self) -> None:
        self.under_way: deque[UnderWay] = deque()
        self.broken_off = threading.Event()

    def drain(self) -> None:
        """Cancels the pieces that have not begun and waits for the others: no thread writes into a batch afterwards."""
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
    """A loader that keeps `prefetch_factor` batches under way with `workers` threads."""

    def __init__(self, schedule: Schedule, make: EncodedMaker, config: RunConfig, buffer: Buffer | None) -> None:
        self._schedule, self._make, self._buffer = schedule, make, buffer
        self._workers = config.workers or 1
        self._depth = config.prefetch_factor or 1
        self._pool = ThreadPoolExecutor(self._workers, "vitprof-decode", initializer=_one_torch_thread)
        self._epoch = Epoch()
        # Without this call, a pool thread that sets its number of torch threads first would change this thread's too.
        torch.get_num_threads()

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._epoch.drain()
        # Each epoch drains only its own, since an iterator of an earlier epoch may be closed late.
        mine = self._epoch = Epoch()
        under_way = mine.under_way
        to_come = iter(self._schedule.batches(epoch))
        queue_depth = 0
        try:
            while True:
                while len(under_way) <= self._depth and (indices := next(to_come, None)) is not None:
                    under_way.append(self._begin(epoch, indices, mine.broken_off))
                if not under_way or mine.broken_off.is_set():
                    return
                yield self._finish(under_way, queue_depth)
                queue_depth = sum(batch.batch is not None for batch in under_way)
        finally:
            mine.drain()

    def _begin(self, epoch: int, indices: Tensor, broken_off: threading.Event) -> UnderWay:
        shape = (len(indices), *self._make.shape)
        out = torch.empty(shape, dtype=torch.uint8) if self._buffer is None else self._buffer(shape)
        rows, chosen, make = out.numpy(), indices.tolist(), self._make
        piece = max(1, -(-len(chosen) // (self._workers * TASKS_A_WORKER)))
        batch = UnderWay(indices, out, -(-len(chosen) // piece))

        def fill(number: int) -> None:
            if broken_off.is_set():
                return
            begun, stopwatch = perf_counter(), make.stopwatch(first=number == 0)
            mine = slice(number * piece, (number + 1) * piece)
            batch.filled(make, number, make.fill(epoch, chosen[mine], rows[mine], stopwatch), stopwatch, begun)

        batch.pieces = [self._pool.submit(fill, number) for number in range(batch.n_pieces)]
        return batch

    def _finish(self, under_way: deque[UnderWay], queue_depth: int) -> Batch:
        under_way_first = under_way[0]  # stays in the queue until done: if a piece fails, others still write into it
        for piece in under_way_first.pieces:
            piece.result()
        batch = under_way.popleft().batch
        assert batch is not None, "its last piece made it"
        return batch if batch.made is None else batch._replace(made=batch.made._replace(queue_depth=queue_depth))

    def close(self) -> None:
        self._epoch.drain()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _one_torch_thread() -> None:
    """Limits torch to one thread: otherwise decoders that use torch would start OpenMP threads in each pool thread."""
    torch.set_num_threads(1)
