"""NVIDIA DALI: its pipeline decodes, crops, resizes and flips JPEG files, on the CPU or on the GPU.

The encoded files come from the storage, read by threads of this process a few batches ahead, so any storage and any
location works. The crops are those that `making.EncodedMaker` takes, so every strategy trains on the same images; DALI
resizes with antialiasing, as Pillow does.

A file that is no whole JPEG is found before DALI gets it. Damage inside the compressed data goes unnoticed here:
DALI decodes it without a word where simplejpeg raises.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import simplejpeg
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from vitprof.config import RunConfig
from vitprof.config.catalog import DatasetInfo
from vitprof.engine.batch import Batch, BatchTimes
from vitprof.engine.decode import Crop
from vitprof.engine.loaders import Schedule
from vitprof.engine.loaders.dali_pipeline import Sample, decoding_device, end_pipeline, feed, open_pipeline, reason
from vitprof.engine.loaders.making import EncodedMaker, images_first
from vitprof.engine.stopwatch import Stopwatch, asked_wait
from vitprof.engine.storage import EncodedStorage
from vitprof.errors import DataError, SampleError

TASKS_A_WORKER = 4
"""Pieces of a batch for each reading thread."""


@dataclass
class UnderWay:
    """A batch that is being read or decoded."""

    indices: Tensor
    reads: list[Future[list[Sample | str]]]
    stopwatch: list[Stopwatch]
    """Of each of the reads."""
    begun_s: float = field(default_factory=perf_counter)
    in_pipeline: bool = False
    good: Tensor | None = None
    """Indices of the samples that could be read."""
    unreadable: tuple[str, ...] = ()
    failure: BaseException | None = None
    """What reading raised; raised when the batch's turn comes."""

    def is_read(self) -> bool:
        """Returns whether taking the reads' results does not wait."""
        return all(read.done() for read in self.reads)


class DaliLoader:
    """Keeps `prefetch_factor` batches being read and as many in a DALI pipeline of `workers` threads."""

    def __init__(self, storage: EncodedStorage, info: DatasetInfo, config: RunConfig, *, train: bool) -> None:
        self._schedule = Schedule(storage, config, train=train)
        self._storage, self._skip = storage, config.skip_unreadable
        self._make = EncodedMaker(storage, info, config, train).punctual()
        self._times, self._wait = config.loader_times, asked_wait(config, train=train)
        self._workers, self._depth = config.workers or 1, config.prefetch_factor or 1
        self._device = decoding_device(config.device)
        largest = min(self._schedule.batch_size, self._schedule.n)
        self._pipeline = open_pipeline(info.image_size, largest, self._workers, self._depth, self._device)
        self._pool = ThreadPoolExecutor(self._workers, "vitprof-dali-read")
        self._reading: deque[UnderWay] = deque()
        self._decoding: deque[UnderWay] = deque()

    def __len__(self) -> int:
        return len(self._schedule)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._break_off()
        # New ones for each epoch: by them an iterator of an earlier epoch, closed late, knows that it is not its turn.
        reading: deque[UnderWay] = deque()
        decoding: deque[UnderWay] = deque()
        self._reading, self._decoding = reading, decoding
        to_come = iter(self._schedule.batches(epoch))

        def go_on() -> None:
            while True:
                while len(reading) < self._depth and (indices := next(to_come, None)) is not None:
                    reading.append(self._read(epoch, indices))
                if not reading or len(decoding) == self._depth or (decoding and not reading[0].is_read()):
                    return
                decoding.append(self._feed(reading.popleft()))

        try:
            go_on()
            while decoding:
                batch = self._finish(epoch, decoding.popleft())
                go_on()  # before the batch is trained on, so that DALI has work meanwhile
                yield batch
        finally:
            if self._decoding is decoding:
                self._break_off()

    def _read(self, epoch: int, indices: Tensor) -> UnderWay:
        chosen = indices.tolist()
        piece = max(1, -(-len(chosen) // (self._workers * TASKS_A_WORKER)))

        starts = range(0, len(chosen), piece)
        stopwatch = [Stopwatch(self._wait if start == 0 else None) for start in starts]

        def read(start: int, stopwatch: Stopwatch) -> list[Sample | str]:
            return [self._sample(epoch, index, stopwatch) for index in chosen[start : start + piece]]

        return UnderWay(
            indices, [self._pool.submit(read, *args) for args in zip(starts, stopwatch, strict=True)], stopwatch
        )

    def _sample(self, epoch: int, index: int, stopwatch: Stopwatch) -> Sample | str:
        """Returns the sample as DALI takes it, or what is wrong with it where such samples are to be skipped."""
        try:
            begun = perf_counter()
            stopwatch.wait("read")
            encoded = self._storage.read_encoded(index)
            stopwatch.read_s += perf_counter() - begun
            try:
                height, width = _size(encoded)
            except ValueError as error:
                raise self._make.undecodable(index, error) from error
        except SampleError as error:
            if not self._skip:
                raise
            return str(error)
        crop: Crop = self._make.crop(epoch, index)(height, width)
        return Sample(
            np.frombuffer(encoded, np.uint8),
            np.array((crop.top, crop.left), np.int32),
            np.array((crop.height, crop.width), np.int32),
            np.array(crop.flip, np.int32),
        )

    def _feed(self, batch: UnderWay) -> UnderWay:
        """Gives a batch to the pipeline as soon as it is read."""
        try:
            samples = [sample for read in batch.reads for sample in read.result()]
        except BaseException as error:
            batch.failure = error
            return batch
        batch.unreadable = tuple(sample for sample in samples if isinstance(sample, str))
        readable = [sample for sample in samples if not isinstance(sample, str)]
        batch.good = batch.indices
        if batch.unreadable:
            kept = [i for i, sample in enumerate(samples) if not isinstance(sample, str)]
            batch.good = batch.indices[torch.tensor(kept, dtype=torch.int64)]
        if readable:
            feed(self._pipeline, readable)
            self._pipeline.schedule_run()
            batch.in_pipeline = True
        return batch

    def _finish(self, epoch: int, batch: UnderWay) -> Batch:
        if batch.failure is not None:
            for read in batch.reads:
                read.exception()  # the other pieces end before the storage may be closed
            raise batch.failure
        assert batch.good is not None
        if not batch.in_pipeline:
            images = torch.empty((0, *self._make.shape), dtype=torch.uint8)
            return Batch(images_first(images), self._storage.labels[:0], batch.unreadable)
        try:
            images = self._output()
        except Exception as error:  # DALI has no class of its own for it
            return self._blame(epoch, batch, error)
        labels = self._storage.labels.index_select(0, batch.good)
        return Batch(images_first(images), labels, batch.unreadable, self._made(batch) if self._times else None)

    @staticmethod
    def _made(batch: UnderWay) -> BatchTimes:
        """DALI does not tell its parts apart, nor when a batch was done: it ends when it is handed out, at the latest.

        Crop and flip are part of its decoding.
        """
        read_s = sum(stopwatch.read_s for stopwatch in batch.stopwatch)
        return BatchTimes(read_s, math.nan, 0.0, math.nan, batch.begun_s, perf_counter())

    def _output(self) -> Tensor:
        """Returns the pipeline's next batch, (b, height, width, channels) uint8 where it was made. Raises what DALI
        raises.
        """
        # Bound to the stream that will read it: there it is ready, and its memory is not used again before.
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        (images,) = self._pipeline.share_outputs(stream)
        try:
            # Nothing is copied; the tensor keeps DALI's memory for as long as it lives.
            return from_dlpack(images.as_tensor())
        finally:
            self._pipeline.release_outputs()

    def _blame(self, epoch: int, batch: UnderWay, error: Exception) -> Batch:
        """Returns the batch without what DALI could not decode, found by decoding one after another; DALI fails as a
        whole.
        """
        made = self._make(epoch, batch.indices)
        if len(made.unreadable) == len(batch.unreadable):
            raise DataError(
                f"DALI cannot decode a batch in which simplejpeg finds nothing wrong ({reason(error)}); "
                "choose loader threads"
            ) from error
        return made

    def _break_off(self) -> None:
        """Cancels and waits for what is under way: nothing is read or decoded afterwards."""
        reads = [read for batch in self._reading for read in batch.reads]
        reads += [read for batch in self._decoding if batch.failure is not None for read in batch.reads]
        for read in reads:
            read.cancel()
        for read in reads:
            if not read.cancelled():
                read.exception()
        self._reading.clear()
        while self._decoding:
            if self._decoding.popleft().in_pipeline:
                try:
                    self._output()
                except Exception:
                    continue  # nobody waits for that batch any more

    def close(self) -> None:
        self._break_off()
        self._pool.shutdown(wait=True, cancel_futures=True)
        end_pipeline(self._pipeline)
        self._pipeline = None


def _size(encoded: bytes) -> tuple[int, int]:
    """(height, width) of a JPEG. Raises `ValueError` with a short reason for bytes that are no whole JPEG."""
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError:
        raise ValueError("it ends inside its header, or is no JPEG file") from None
    # DALI decodes only the rows it needs and would not miss the end. The marker for it cannot occur inside compressed
    # data (ITU-T T.81, F.1.2.3); behind it there may be padding.
    if not encoded.endswith(b"\xff\xd9") and encoded.rfind(b"\xff\xd9") <= encoded.rfind(b"\xff\xda"):
        raise ValueError("it ends too early")
    return height, width
