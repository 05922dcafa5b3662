"""The whole-batch reader in a thread of its own, one or more batches ahead of the training loop."""

from __future__ import annotations

import threading
from collections.abc import Generator
from queue import SimpleQueue

from vitprof.config import RunConfig
from vitprof.engine.batch import Batch
from vitprof.engine.loaders import Loader
from vitprof.measure.batch_times import BatchTimes


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
