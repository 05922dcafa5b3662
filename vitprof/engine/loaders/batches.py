"""Loaders in the training process: in its loop, in a thread ahead of it, and in many threads that
decode.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol

import torch

from vitprof.config import RunConfig
from vitprof.engine.loaders.batch_assembly import EncodedMaker, Maker, is_alone, with_look
from vitprof.engine.loaders.contract import Batch, Buffer, Schedule
from vitprof.engine.loaders.dataloader import fetch
from vitprof.measure.stage_look import LookSchedule, StageLook, begin_look
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import Stopwatch, Wait


class BatchReader:
    """A loader that makes each batch when the loop asks for it, in the loop's thread: with
    `make(epoch, indices)`.
    """

    def __init__(self, schedule: Schedule, make: Callable[[int, torch.Tensor], Batch]) -> None:
        self._schedule = schedule
        self._make = make

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


def one_by_one(make: Maker, rest: Maker) -> Callable[[int, torch.Tensor], Batch]:
    """Returns a function that makes a batch of a storage's pixels or encoded images one by one:
    read, decode, stack.

    `make` makes the first; `rest` the others, without the deliberate wait, which each batch gets
    once.
    """

    looks = make.looks
    # One sample is no batch.
    make.looks = rest.looks = LookSchedule(is_on=False)

    def joined(epoch: int, indices: torch.Tensor, look: StageLook | None) -> Batch:
        first, *others = indices.split(1)  # type: ignore[no-untyped-call]
        samples = [make(epoch, first, look=look)]
        samples += [rest(epoch, index, look=look) for index in others]
        return _joined(samples)

    def made(epoch: int, indices: torch.Tensor) -> Batch:
        counts_for = looks.next_counts_for()
        look = begin_look(counts_for, len(indices)) if counts_for else None
        if look is None:
            batch = joined(epoch, indices, None)
        else:
            with closing(look):
                batch = joined(epoch, indices, look)
            batch = with_look(batch, look)
        if batch.made is not None:
            looks.took_s = batch.made.end_s - batch.made.start_s
        return batch

    return made


def _joined(samples: list[Batch]) -> Batch:
    """Returns batches of one sample each, joined into one batch.

    Its stage times are the sums of theirs.
    """
    begun = perf_counter()
    images = torch.cat([sample.images for sample in samples])
    labels = torch.cat([sample.labels for sample in samples])
    unreadable: tuple[str, ...] = sum((sample.unreadable for sample in samples), ())
    each = [sample.made for sample in samples if sample.made is not None]
    if not each:
        return Batch(images, labels, unreadable)
    end = perf_counter()
    read_s, decode_s, transform_s, collate_s = (
        sum(made[part] for made in each) for part in range(4)
    )
    made = BatchTimes(read_s, decode_s, transform_s, collate_s + end - begun, each[0].start_s, end)
    return Batch(images, labels, unreadable, made)


class EpochAhead(Protocol):
    """An epoch whose batches are made before the loop asks for them."""

    def batches(self) -> Generator[Batch, None, None]:
        """Yields the batches; no more of them after `end`."""

    def end(self) -> None:
        """Ends the work on what is not finished: no thread writes into a batch afterwards.

        May be called twice.
        """


class AheadLoader:
    """The common part of loaders that work ahead of the loop: an epoch ends the one before it."""

    def __init__(self, schedule: Schedule, config: RunConfig) -> None:
        self.schedule = schedule
        self.depth = config.prefetch_factor or 1
        self._running: EpochAhead | None = None

    def __len__(self) -> int:
        return len(self.schedule)

    def _begin(self, epoch: int) -> EpochAhead:
        raise NotImplementedError

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._end_epoch()
        # Each ends only its own work, since an iterator of an earlier epoch may be closed late.
        mine = self._running = self._begin(epoch)
        try:
            yield from mine.batches()
        finally:
            mine.end()

    def _end_epoch(self) -> None:
        ending = self._running
        self._running = None
        if ending is not None:
            ending.end()

    def close(self) -> None:
        self._end_epoch()


class AheadReader(AheadLoader):
    """A loader that runs another loader's epochs in a thread and keeps up to `prefetch_factor`
    batches ready.
    """

    def __init__(self, schedule: Schedule, reader: BatchReader, config: RunConfig) -> None:
        super().__init__(schedule, config)
        self._reader = reader

    def _begin(self, epoch: int) -> ThreadedEpoch:
        return ThreadedEpoch(self._reader.epoch(epoch), self.depth)


class ThreadedEpoch:
    """An epoch that a thread reads, up to `depth` batches ahead."""

    def __init__(self, epoch: Generator[Batch, None, None], depth: int) -> None:
        # Both queues are written in C: queue.Queue's locks are Python and would take a tenth of a
        # fast batch's time.
        self._free: SimpleQueue[None] = SimpleQueue()
        self._ready: SimpleQueue[Batch | BaseException | None] = SimpleQueue()
        self._stop = threading.Event()
        self._epoch = epoch
        self._n_read = 0
        # One more, which is being read, so that the thread need not sleep for each batch.
        for _ in range(depth + 1):
            self._free.put(None)
        self._thread = threading.Thread(target=self._read, name="vitprof-ahead", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        free = self._free
        ready = self._ready
        stop = self._stop
        try:
            while True:
                free.get()
                if stop.is_set():
                    break
                batch = next(self._epoch, None)
                if batch is None:
                    break
                self._n_read += 1
                ready.put(batch)
        except BaseException as error:
            ready.put(error)
        finally:
            self._epoch.close()
            ready.put(None)

    def batches(self) -> Generator[Batch, None, None]:
        free = self._free
        ready = self._ready
        n_taken = queue_depth = 0
        while (batch := ready.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            free.put(None)
            n_taken += 1
            images, labels, unreadable, made, _, looked = batch
            if made is not None:
                # Not with _replace, which takes three times as long.
                made = BatchTimes(*made[:7], queue_depth)
                batch = Batch(images, labels, unreadable, made, None, looked)
            yield batch
            queue_depth = self._n_read - n_taken

    def end(self) -> None:
        self._stop.set()
        # Wakes the thread if it waits.
        self._free.put(None)
        self._thread.join()


TASKS_A_WORKER = 4
"""Pieces of a batch for each thread: no thread waits long for the last, and a piece is worth a
task."""


class PoolLoader(AheadLoader):
    """The common part of loaders whose `workers` threads work on batches in pieces."""

    def __init__(self, schedule: Schedule, config: RunConfig, wait: Wait | None, name: str) -> None:
        super().__init__(schedule, config)
        self.wait = wait
        self.workers = config.workers or 1
        # Otherwise decoders that use torch would start OpenMP threads in each pool thread.
        self.pool = ThreadPoolExecutor(
            self.workers, name, initializer=torch.set_num_threads, initargs=(1,)
        )
        # Without this call, a pool thread that sets its number of torch threads first would change
        # this thread's, too.
        torch.get_num_threads()

    def close(self) -> None:
        super().close()
        self.pool.shutdown(wait=True, cancel_futures=True)


class Pieces:
    """A batch that a loader's threads work on: `work(part, stopwatch)` for each piece, the first
    with the wait.
    """

    def __init__(
        self, loader: PoolLoader, indices: torch.Tensor, work: Callable[[slice, Stopwatch], Any]
    ) -> None:
        self.indices = indices
        size = max(1, math.ceil(len(indices) / (loader.workers * TASKS_A_WORKER)))
        starts = range(0, len(indices), size)
        # The deliberate wait is once a batch.
        self.stopwatches = [Stopwatch(None if start else loader.wait) for start in starts]
        parts = zip(starts, self.stopwatches, strict=True)
        self.futures = [
            loader.pool.submit(work, slice(start, start + size), stopwatch)
            for start, stopwatch in parts
        ]


def end_work(batches: deque[Any]) -> None:
    """Cancels the pieces that have not begun and waits for the others."""
    pieces = [piece for batch in batches for piece in batch.futures]
    wait([piece for piece in pieces if not piece.cancel()])
    batches.clear()


class Filling(Pieces):
    """A batch that threads decode into memory."""

    def __init__(self, loader: ThreadsLoader, epoch: int, indices: torch.Tensor) -> None:
        self.batch: Batch | None = None
        """None until all of it is decoded."""
        self._make = loader.make
        self._epoch = epoch
        shape = (len(indices), *loader.make.shape)
        if loader.buffer is None:
            self._out = torch.empty(shape, dtype=torch.uint8)
        else:
            self._out = loader.buffer(shape)
        self._chosen = indices.tolist()
        self._rows = self._out.numpy()
        self._wrong = [""] * len(indices)
        self._begun_s = math.inf
        self._n_filled = 0
        self._counts_for = loader.make.looks.next_counts_for()
        self._lock = threading.Lock()
        # Last: threads begin at once with what is set above.
        super().__init__(loader, indices, self._fill)

    def _fill(self, part: slice, stopwatch: Stopwatch) -> None:
        begun = perf_counter()
        # Each look makes a thread wait for Python's lock: one piece stands for all.
        if self._counts_for and not part.start:
            n = len(self._chosen[part])
            stopwatch.look = begin_look(self._counts_for, n, is_alone=is_alone())
        try:
            self._wrong[part] = self._make.fill(
                self._epoch, self._chosen[part], self._rows[part], stopwatch
            )
        finally:
            if stopwatch.look is not None:
                stopwatch.look.close()
        with self._lock:
            self._begun_s = min(self._begun_s, begun)
            self._n_filled += 1
            if self._n_filled < len(self.stopwatches):
                return
        # The last piece finishes the batch: ready before the loop asks for it.
        batch = self._make.finish(
            self.indices, self._out, self._wrong, self._begun_s, *self.stopwatches
        )
        look = self.stopwatches[0].look
        self.batch = batch if look is None else with_look(batch, look)


class ThreadsEpoch:
    """An epoch whose batches threads fill, as many ahead as the loader's depth."""

    def __init__(self, loader: ThreadsLoader, epoch: int) -> None:
        self._loader = loader
        self._epoch = epoch
        self._to_come = iter(loader.schedule.batches(epoch))
        self.under_way: deque[Filling] = deque()

    def batches(self) -> Generator[Batch, None, None]:
        under_way = self.under_way
        queue_depth = 0
        while True:
            while len(under_way) <= self._loader.depth:
                indices = next(self._to_come, None)
                if indices is None:
                    break
                under_way.append(Filling(self._loader, self._epoch, indices))
            if not under_way:
                return
            # It stays in the queue until done: if a piece fails, others still write into it.
            first = under_way[0]
            for piece in first.futures:
                piece.result()
            batch = under_way.popleft().batch
            assert batch is not None, "its last piece made it"
            if batch.made is not None:
                batch = batch._replace(made=batch.made._replace(queue_depth=queue_depth))
            yield batch
            queue_depth = sum(batch.batch is not None for batch in under_way)

    def end(self) -> None:
        self._to_come = iter(())
        end_work(self.under_way)


class ThreadsLoader(PoolLoader):
    """A loader that keeps `prefetch_factor` batches under way with `workers` threads."""

    def __init__(
        self, schedule: Schedule, make: EncodedMaker, config: RunConfig, buffer: Buffer | None
    ) -> None:
        super().__init__(schedule, config, make.wait, "vitprof-decode")
        self.make = make
        self.buffer = buffer

    def _begin(self, epoch: int) -> ThreadsEpoch:
        return ThreadsEpoch(self, epoch)
