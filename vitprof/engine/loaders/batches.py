"""The whole-batch reader: each batch is one read of the storage, in the training loop."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import torch

from vitprof.config import RunConfig
from vitprof.engine.loaders.batch_assembly import EncodedMaker, Maker
from vitprof.engine.loaders.contract import Batch, Buffer, Loader, Schedule
from vitprof.engine.loaders.dataloader import fetch
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import Stopwatch


class BatchReader:
    """A loader that makes each batch when the loop asks for it, in the loop's thread: with `make(epoch, indices)`."""

    def __init__(self, schedule: Schedule, make: Callable[[int, torch.Tensor], Batch]) -> None:
        self._schedule, self._make = schedule, make

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        make = self._make
        for indices in self._schedule.batches(epoch):
            yield make(epoch, indices)

    def close(self) -> None:
        return


def in_buffers(make: Maker, buffer: Buffer | None) -> Callable[[int, torch.Tensor], Batch]:
    """Returns a function that makes a batch in one read, in memory of `buffer` if that is given."""
    if buffer is None:
        return make
    shape = make.shape
    return lambda epoch, indices: make(epoch, indices, buffer((len(indices), *shape)))


def of_samples(samples: Any, collate: Callable[[Any], Any]) -> Callable[[int, torch.Tensor], Batch]:
    """Returns a function that makes a batch of a Dataset's samples: index, transform, stack."""
    return lambda _, indices: Batch(*collate(fetch(samples, indices.tolist())))


def one_by_one(make: Maker) -> Callable[[int, torch.Tensor], Batch]:
    """Returns a function that makes a batch of a storage's pixels or encoded images one by one: read, decode, stack."""
    another = make.punctual()  # a deliberate wait is added once to the batch, not to each sample

    def made(epoch: int, indices: torch.Tensor) -> Batch:
        first, *others = indices.split(1)  # type: ignore[no-untyped-call]
        return _joined([make(epoch, first), *(another(epoch, index) for index in others)])

    return made


class AheadReader:
    """A loader that runs another loader's epochs in a thread and keeps up to `prefetch_factor` batches ready."""

    def __init__(self, loader: Loader, config: RunConfig) -> None:
        self._loader = loader
        self._depth = config.prefetch_factor or 1
        self._reading: Reading | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._break_off()
        # Each epoch ends only its own thread, since an iterator of an earlier epoch may be closed late.
        reading = self._reading = Reading(self._loader.epoch(epoch), self._depth)
        try:
            yield from reading.batches()
        finally:
            reading.end()

    def _break_off(self) -> None:
        if self._reading is not None:
            self._reading.end()
            self._reading = None

    def close(self) -> None:
        self._break_off()
        self._loader.close()


class Reading:
    """An epoch that a thread reads."""

    def __init__(self, epoch: Generator[Batch, None, None], depth: int) -> None:
        # Both queues are written in C: queue.Queue's locks are Python and would take a tenth of a fast batch's time.
        self._free: SimpleQueue[None] = SimpleQueue()
        self._ready: SimpleQueue[Batch | BaseException | None] = SimpleQueue()
        self._stop = threading.Event()
        self._epoch = epoch
        self._n_read = 0
        for _ in range(depth + 1):  # one more, which is being read, so that the thread need not sleep for each batch
            self._free.put(None)
        self._thread = threading.Thread(target=self._read, name="vitprof-ahead", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        free, ready, stop = self._free, self._ready, self._stop
        try:
            while free.get() is None and not stop.is_set() and (batch := next(self._epoch, None)) is not None:
                self._n_read += 1
                ready.put(batch)
        except BaseException as error:
            ready.put(error)
        finally:
            self._epoch.close()
            ready.put(None)

    def batches(self) -> Generator[Batch, None, None]:
        free, ready = self._free, self._ready
        n_taken = queue_depth = 0
        while (batch := ready.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            free.put(None)
            n_taken += 1
            images, labels, unreadable, made, _ = batch
            # not with _replace, which takes three times as long
            yield batch if made is None else Batch(images, labels, unreadable, BatchTimes(*made[:7], queue_depth))
            queue_depth = self._n_read - n_taken

    def end(self) -> None:
        self._stop.set()
        self._free.put(None)  # wakes the thread if it waits
        self._thread.join()


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


TASKS_A_WORKER = 4


@dataclass
class UnderWay:
    """A batch that is being filled."""

    indices: torch.Tensor
    out: torch.Tensor
    n_pieces: int
    pieces: list[Future[None]] = field(default_factory=list)
    batch: Batch | None = None
    _wrong: dict[int, list[str]] = field(default_factory=dict)
    _stopwatch: Stopwatch = field(default_factory=Stopwatch)
    _begun_s: float = math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def filled(self, make: EncodedMaker, number: int, wrong: list[str], stopwatch: Stopwatch, begun_s: float) -> None:
        """Notes that a piece is done. After the last one it finishes the batch, ready before the loop asks for it."""
        with self._lock:
            self._wrong[number] = wrong
            self._begun_s = min(self._begun_s, begun_s)
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
        wait([piece for batch in self.under_way for piece in batch.pieces if not piece.cancel()])
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

    def _begin(self, epoch: int, indices: torch.Tensor, broken_off: threading.Event) -> UnderWay:
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
