"""NVIDIA nvImageCodec: decodes a batch of JPEG files at once, on the GPU or on the CPU.

The encoded files come from the storage, read by threads of this process some batches ahead, so any storage and any
location works. Decoding and resizing are queued in the training stream when the loop asks for the batch: the GPU does
them between two steps. The crops are those of `making.EncodedMaker`, so every strategy trains on the same images; they
are resized with antialiasing, as Pillow does.

A file that is not a complete JPEG is found before it is decoded. Damage inside the compressed data can go unnoticed, as
with DALI: gaps become grey.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter

import torch
from torch import Tensor

from vitprof.config import RunConfig
from vitprof.config.catalog import DatasetInfo
from vitprof.engine.batch import Batch
from vitprof.engine.loaders.batch_decoding import BatchDecoding
from vitprof.engine.loaders.encoded_reads import BatchReads, EncodedReads, ReadBatch
from vitprof.engine.loaders.nvimgcodec_decoder import BatchDecoder, Sample
from vitprof.engine.storage import EncodedStorage
from vitprof.measure.devices import Mark
from vitprof.measure.recorder import BatchTimes


class NvimgcodecLoader(BatchDecoding):
    """A loader whose `workers` threads read `prefetch_factor` batches ahead. It decodes a batch when asked for it."""

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
        self._skip = config.skip_unreadable
        self._decoder = BatchDecoder(info.image_size, config.workers or 1, self._device)
        self._reads = EncodedReads(storage, self._make, config, self._wait, self._decoder.sample)
        self._reading: deque[BatchReads[Sample]] = deque()

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self._break_off()
        # A new queue for each epoch: an iterator of an earlier epoch, closed late, sees by it that its turn is over.
        reading = self._reading = deque[BatchReads[Sample]]()
        to_come = iter(self._schedule.batches(epoch))
        try:
            while self._reading is reading:
                while len(reading) <= self._depth and (indices := next(to_come, None)) is not None:
                    reading.append(self._reads.begin(epoch, indices))
                if not reading:
                    return
                yield self._finish(reading.popleft())
        finally:
            if self._reading is reading:
                self._break_off()

    def _finish(self, reads: BatchReads[Sample]) -> Batch:
        asked = perf_counter()
        read = reads.result()
        begun = perf_counter()
        if self._wait is not None:
            self._wait.into("decode")
        images, bad = self._decoder.decode(read.samples)
        indices, unreadable = self._without(bad, read) if bad else (read.indices, read.unreadable)
        passed = self._decoded()
        decoded = perf_counter()
        if self._wait is not None:
            self._wait.into("collate")
        labels = self._storage.labels.index_select(0, indices)
        if not self._times:
            return Batch(images, labels, unreadable, None, passed)
        end = perf_counter()
        # The batch is made while the loop waits. So read_s is only the reading left at that time, and on a GPU decode_s
        # is only the host's part.
        made = BatchTimes(begun - asked, decoded - begun, 0.0, end - decoded, asked, end)
        return Batch(images, labels, unreadable, made, passed)

    def _without(self, bad: list[int], read: ReadBatch[Sample]) -> tuple[Tensor, tuple[str, ...]]:
        """Returns the remaining indices and the messages of a batch whose samples at `bad` could not be decoded.

        Raises `SampleError` for the first of them unless such samples are skipped.
        """
        reason = ValueError("nvImageCodec cannot decode it")
        errors = [self._make.undecodable(int(read.indices[i]), reason) for i in bad]
        if not self._skip:
            raise errors[0]
        good = torch.ones(len(read.indices), dtype=torch.bool)
        good[bad] = False
        return read.indices[good], (*read.unreadable, *map(str, errors))

    def _break_off(self) -> None:
        """Cancels or waits for what is being read: nothing is read afterwards."""
        for reads in self._reading:
            reads.cancel()
        self._reading = deque()

    def close(self) -> None:
        self._break_off()
        self._reads.close()
        self._decoder.close()
