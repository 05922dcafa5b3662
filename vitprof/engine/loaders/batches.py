"""The whole-batch reader: each batch is one read of the storage, in the training loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from vitprof.config import RunConfig
from vitprof.engine.loaders.batch_assembly import Maker
from vitprof.engine.loaders.contract import Batch, Buffer, Loader, Schedule
from vitprof.engine.loaders.dataloader import fetch
from vitprof.measure.step_columns import BatchTimes


class BatchReader:
    """A loader that makes each batch when the loop asks for it, in the loop's thread: with `make(epoch, indices)`."""

    def __init__(self, schedule: Schedule, make: Callable[[int, Tensor], Batch]) -> None:
        self._schedule, self._make = schedule, make

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        make = self._make
        for indices in self._schedule.batches(epoch):
            yield make(epoch, indices)

    def close(self) -> None:
        return


def in_buffers(make: Maker, buffer: Buffer | None) -> Callable[[int, Tensor], Batch]:
    """Returns a function that makes a batch in one read, in memory of `buffer` if that is given."""
    if buffer is None:
        return make
    shape = make.shape
    return lambda epoch, indices: make(epoch, indices, buffer((len(indices), *shape)))


def of_samples(samples: Any, collate: Callable[[Any], Any]) -> Callable[[int, Tensor], Batch]:
    """Returns a function that makes a batch of a Dataset's samples: index, transform, stack."""
    return lambda _, indices: Batch(*collate(fetch(samples, indices.tolist())))


def one_by_one(make: Maker) -> Callable[[int, Tensor], Batch]:
    """Returns a function that makes a batch of a storage's pixels or encoded images one by one: read, decode, stack."""
    another = make.punctual()  # a deliberate wait is added once to the batch, not to each sample

    def made(epoch: int, indices: Tensor) -> Batch:
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
