"""Threads that read whole batches ahead, for DALI, which decodes a batch at once.

Each image comes with the crop that `making.EncodedMaker` takes of it, so every strategy trains on the same samples. A
file that is not a complete JPEG is found here, before a decoder gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, TypeVar

import simplejpeg
import torch
from torch import Tensor

from vitprof.config import RunConfig
from vitprof.engine.decode import Crop
from vitprof.engine.loaders.batch_assembly import EncodedMaker
from vitprof.engine.storage.contract import EncodedStorage
from vitprof.errors import SampleError
from vitprof.measure.stopwatch import Stopwatch, Wait

TASKS_A_WORKER = 4
"""Pieces of a batch for each reading thread."""

S = TypeVar("S")
"""Type of a sample as the decoder takes it."""


@dataclass(frozen=True)
class ReadBatch(Generic[S]):
    """The samples of a batch that could be read."""

    samples: list[S]
    """The samples, in the batch's order."""
    indices: Tensor
    """Their indices, (b,) int64."""
    unreadable: tuple[str, ...]
    """One line for each sample that was left out."""


@dataclass
class BatchReads(Generic[S]):
    """A batch that is being read."""

    indices: Tensor
    """(b,) int64"""
    pieces: list[Future[list[S | str]]]
    stopwatches: list[Stopwatch]
    """One for each piece."""
    begun_s: float = field(default_factory=perf_counter)
    """When reading was requested, on the host's monotonic clock."""

    @property
    def read_s(self) -> float:
        """Returns the seconds that threads spent reading it, summed over all threads."""
        return sum(stopwatch.read_s for stopwatch in self.stopwatches)

    def is_read(self) -> bool:
        """Returns whether `result` would not wait."""
        return all(piece.done() for piece in self.pieces)

    def result(self) -> ReadBatch[S]:
        """Waits until the batch is read and returns it. Raises what reading raised, once all its threads are done."""
        for piece in self.pieces:
            piece.exception()
        found = [sample for piece in self.pieces for sample in piece.result()]
        unreadable = tuple(sample for sample in found if isinstance(sample, str))
        if not unreadable:
            return ReadBatch([sample for sample in found if not isinstance(sample, str)], self.indices, ())
        kept = [(i, sample) for i, sample in enumerate(found) if not isinstance(sample, str)]
        good = self.indices[torch.tensor([i for i, _ in kept], dtype=torch.int64)]
        return ReadBatch([sample for _, sample in kept], good, unreadable)

    def cancel(self) -> None:
        """Cancels the pieces that have not begun and waits for the others."""
        for piece in self.pieces:
            piece.cancel()
        for piece in self.pieces:
            if not piece.cancelled():
                piece.exception()


class EncodedReads(Generic[S]):
    """A reader of batches with `workers` threads. Each thread calls `prepare` on the samples that it has read.

    `prepare` returns the sample as the decoder takes it, and raises `ValueError` with a short reason for unusable
    bytes.
    """

    def __init__(
        self,
        storage: EncodedStorage,
        make: EncodedMaker,
        config: RunConfig,
        wait: Wait | None,
        prepare: Callable[[bytes, Crop], S],
    ) -> None:
        self._storage, self._make, self._prepare = storage, make, prepare
        self._skip, self._wait = config.skip_unreadable, wait
        self._workers = config.workers or 1
        self._pool = ThreadPoolExecutor(self._workers, f"vitprof-{config.loader}-read")

    def begin(self, epoch: int, indices: Tensor) -> BatchReads[S]:
        """Starts to read the samples at `indices` (b,) int64, with their crops for `epoch`."""
        chosen = indices.tolist()
        piece = max(1, -(-len(chosen) // (self._workers * TASKS_A_WORKER)))
        starts = range(0, len(chosen), piece)
        stopwatches = [Stopwatch(self._wait if start == 0 else None) for start in starts]

        def read(start: int, stopwatch: Stopwatch) -> list[S | str]:
            return [self._sample(epoch, index, stopwatch) for index in chosen[start : start + piece]]

        pieces = [self._pool.submit(read, *args) for args in zip(starts, stopwatches, strict=True)]
        return BatchReads(indices, pieces, stopwatches)

    def _sample(self, epoch: int, index: int, stopwatch: Stopwatch) -> S | str:
        """Returns the sample. Returns the error message of an unreadable one where such samples are skipped."""
        try:
            begun = perf_counter()
            stopwatch.wait("read")
            encoded = self._storage.read_encoded(index)
            stopwatch.read_s += perf_counter() - begun
            try:
                return self._prepare(encoded, self._make.crop(epoch, index)(*_size(encoded)))
            except ValueError as error:
                raise self._make.undecodable(index, error) from error
        except SampleError as error:
            if not self._skip:
                raise
            return str(error)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _size(encoded: bytes) -> tuple[int, int]:
    """Returns (height, width) of a JPEG. Raises `ValueError` with a short reason if it is not a complete JPEG."""
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError:
        raise ValueError("it ends inside its header, or is not a JPEG file") from None
    # A decoder that decodes only the crop's rows would not notice a missing end. The end marker cannot occur inside
    # compressed data (ITU-T T.81, F.1.2.3); padding may follow it.
    if not encoded.endswith(b"\xff\xd9") and encoded.rfind(b"\xff\xd9") <= encoded.rfind(b"\xff\xda"):
        raise ValueError("it ends too early")
    return height, width
