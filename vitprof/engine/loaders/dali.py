"""NVIDIA DALI: its pipeline decodes, crops, resizes and flips JPEG files, on the CPU or on the GPU.

The encoded files come from the storage, read by threads of this process a few batches ahead, so any storage and any
location works. The crops are those of `making.EncodedMaker`, so every strategy trains on the same images; DALI resizes
with antialiasing, as Pillow does.

A file that is not a complete JPEG is found before DALI gets it. Damage inside the compressed data goes unnoticed here:
DALI decodes it silently where simplejpeg raises an error.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from vitprof.config import RunConfig
from vitprof.config.catalog import DatasetInfo
from vitprof.engine.batch import Batch
from vitprof.engine.decode import Crop
from vitprof.engine.loaders.batch_assembly import images_first
from vitprof.engine.loaders.batch_decoding import BatchDecoding
from vitprof.engine.loaders.dali_pipeline import Sample, end_pipeline, feed, open_pipeline, reason
from vitprof.engine.loaders.encoded_reads import BatchReads, EncodedReads
from vitprof.engine.storage import EncodedStorage
from vitprof.errors import DataError
from vitprof.measure.devices import Mark
from vitprof.measure.recorder import BatchTimes


@dataclass
class UnderWay:
    """A batch that is being read or decoded."""

    reads: BatchReads[Sample]
    in_pipeline: bool = False
    good: Tensor | None = None
    """Indices of the samples that could be read."""
    unreadable: tuple[str, ...] = ()
    failure: BaseException | None = None
    """What reading raised; raised when the batch's turn comes."""


class DaliLoader(BatchDecoding):
    """A loader that keeps `prefetch_factor` batches being read, and as many in a DALI pipeline of `workers` threads."""

    def __init__(
        self,
        storage: EncodedStorage,
        info: DatasetInfo,
        config: RunConfig,
        *,
        train: bool,
        mark: Callable[[], Mark] | None = None,
    ) -> None:
        super().__init__(storage, info, config, train=train, mark=mark)
        largest = min(self._schedule.batch_size, self._schedule.n)
        self._pipeline = open_pipeline(info.image_size, largest, config.workers or 1, self._depth, self._device)
        self._reads = EncodedReads(storage, self._make, config, self._wait, _as_dali_takes_it)
        self._reading: deque[UnderWay] = deque()
        self._decoding: deque[UnderWay] = deque()

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._break_off()
        # New queues for each epoch: an iterator of an earlier epoch, closed late, sees by them that its turn is over.
        reading: deque[UnderWay] = deque()
        decoding: deque[UnderWay] = deque()
        self._reading, self._decoding = reading, decoding
        to_come = iter(self._schedule.batches(epoch))

        def go_on() -> None:
            while True:
                while len(reading) < self._depth and (indices := next(to_come, None)) is not None:
                    reading.append(UnderWay(self._reads.begin(epoch, indices)))
                if not reading or len(decoding) == self._depth or (decoding and not reading[0].reads.is_read()):
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

    def _feed(self, batch: UnderWay) -> UnderWay:
        """Waits until a batch is read and gives it to the pipeline."""
        try:
            read = batch.reads.result()
        except BaseException as error:
            batch.failure = error
            return batch
        batch.good, batch.unreadable = read.indices, read.unreadable
        if read.samples:
            feed(self._pipeline, read.samples)
            self._pipeline.schedule_run()
            batch.in_pipeline = True
        return batch

    def _finish(self, epoch: int, batch: UnderWay) -> Batch:
        if batch.failure is not None:
            raise batch.failure
        assert batch.good is not None
        if not batch.in_pipeline:
            images = torch.empty((0, *self._make.shape), dtype=torch.uint8)
            return Batch(images_first(images), self._storage.labels[:0], batch.unreadable)
        try:
            images = self._output()
        except Exception as error:  # DALI has no class of its own for it
            return self._blame(epoch, batch, error)
        decoded = self._decoded()
        labels = self._storage.labels.index_select(0, batch.good)
        made = self._made(batch) if self._times else None
        return Batch(images_first(images), labels, batch.unreadable, made, decoded)

    @staticmethod
    def _made(batch: UnderWay) -> BatchTimes:
        """Returns the times of a batch that is handed over now.

        DALI reports neither the times of its parts nor when a batch was done; on the CPU that is now at the latest. On
        the GPU decoding may end later: `Batch.decoded` tells when. Crop and flip are part of decoding.
        """
        return BatchTimes(batch.reads.read_s, math.nan, 0.0, math.nan, batch.reads.begun_s, perf_counter())

    def _output(self) -> Tensor:
        """Returns the pipeline's next batch: (b, height, width, channels) uint8, on the device that decodes.

        Raises what DALI raises.
        """
        # Bound to the stream that will read it: that stream, not this thread, waits until it is ready, and its memory
        # is not used again before it is read.
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        (images,) = self._pipeline.share_outputs(stream)
        try:
            # Nothing is copied; the tensor keeps DALI's memory alive as long as it exists.
            return from_dlpack(images.as_tensor())
        finally:
            self._pipeline.release_outputs()

    def _blame(self, epoch: int, batch: UnderWay, error: Exception) -> Batch:
        """Returns the batch without the samples that cannot be decoded, made with simplejpeg, one sample after another.

        DALI only fails for the batch as a whole.
        """
        made = self._make(epoch, batch.reads.indices)
        if len(made.unreadable) == len(batch.unreadable):
            raise DataError(
                f"DALI cannot decode a batch in which simplejpeg finds nothing wrong ({reason(error)}); "
                "choose loader threads"
            ) from error
        return made

    def _break_off(self) -> None:
        """Cancels or waits for everything under way: nothing is read or decoded afterwards."""
        for batch in self._reading:
            batch.reads.cancel()
        self._reading.clear()
        while self._decoding:
            if self._decoding.popleft().in_pipeline:
                try:
                    self._output()
                except Exception:
                    continue  # that batch is no longer wanted

    def close(self) -> None:
        self._break_off()
        self._reads.close()
        end_pipeline(self._pipeline)
        self._pipeline = None


def _as_dali_takes_it(encoded: bytes, crop: Crop) -> Sample:
    return Sample(
        np.frombuffer(encoded, np.uint8),
        np.array((crop.top, crop.left), np.int32),
        np.array((crop.height, crop.width), np.int32),
        np.array(crop.flip, np.int32),
    )
