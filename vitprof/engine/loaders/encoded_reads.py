"""Threads that read whole batches ahead, for DALI, which decodes a batch at once.

Each image comes with the crop that `making.EncodedMaker` takes of it, so every strategy trains on the same samples. A
file that is not a complete JPEG is found here, before a decoder gets it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config import RunConfig
from vitprof.engine.loaders.batch_assembly import EncodedMaker
from vitprof.engine.storage.contract import EncodedStorage
from vitprof.errors import SampleError
from vitprof.measure.stopwatch import Stopwatch, Wait

TASKS_A_WORKER = 4
"""Pieces of a batch for each reading thread."""


class Sample(NamedTuple):
    """The inputs of the pipeline for one sample."""

    encoded: NDArray[np.uint8]
    """The bytes of a JPEG file."""
    start: NDArray[np.int32]
    """(top, left) of the crop in pixels of the original."""
    shape: NDArray[np.int32]
    """(height, width) of the crop."""
    flip: NDArray[np.int32]
    """(), 1 to mirror it"""


@dataclass
class BatchReads:
    """A batch that is being read."""

    indices: Tensor
    """(b,) int64"""
    pieces: list[Future[list[Sample | str]]]
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

    def result(self) -> tuple[list[Sample], Tensor, tuple[str, ...]]:
        """Waits until the batch is read. Returns the samples that could be read in their order, their indices (b,)
        int64, and one line for each of the others. Raises what reading raised, once all its threads are done.
        """
        for piece in self.pieces:
            piece.exception()
        found = [sample for piece in self.pieces for sample in piece.result()]
        unreadable = tuple(sample for sample in found if isinstance(sample, str))
        kept = {i: sample for i, sample in enumerate(found) if not isinstance(sample, str)}
        indices = self.indices[torch.tensor([*kept], dtype=torch.int64)] if unreadable else self.indices
        return [*kept.values()], indices, unreadable

    def cancel(self) -> None:
        """Cancels the pieces that have not begun and waits for the others."""
        for piece in self.pieces:
            piece.cancel()
        for piece in self.pieces:
            if not piece.cancelled():
                piece.exception()


class EncodedReads:
    """A reader of batches with `workers` threads."""

    def __init__(self, storage: EncodedStorage, make: EncodedMaker, config: RunConfig, wait: Wait | None) -> None:
        self._storage, self._make = storage, make
        self._skip, self._wait = config.skip_unreadable, wait
        self._workers = config.workers or 1
        self._pool = ThreadPoolExecutor(self._workers, f"vitprof-{config.loader}-read")

    def begin(self, epoch: int, indices: Tensor) -> BatchReads:
        """Starts to read the samples at `indices` (b,) int64, with their crops for `epoch`."""
        chosen = indices.tolist()
        piece = max(1, -(-len(chosen) // (self._workers * TASKS_A_WORKER)))
        starts = range(0, len(chosen), piece)
        stopwatches = [Stopwatch(self._wait if start == 0 else None) for start in starts]

        def read(start: int, stopwatch: Stopwatch) -> list[Sample | str]:
            return [self._sample(epoch, index, stopwatch) for index in chosen[start : start + piece]]

        pieces = [self._pool.submit(read, *args) for args in zip(starts, stopwatches, strict=True)]
        return BatchReads(indices, pieces, stopwatches)

    def _sample(self, epoch: int, index: int, stopwatch: Stopwatch) -> Sample | str:
        """Returns the sample. Returns the error message of an unreadable one where such samples are skipped."""
        try:
            begun = perf_counter()
            stopwatch.wait("read")
            encoded = self._storage.read_encoded(index)
            stopwatch.read_s += perf_counter() - begun
            try:
                crop = self._make.crop(epoch, index)(*_size(encoded))
            except ValueError as error:
                raise self._make.undecodable(index, error) from error
            start, shape = np.array((crop.top, crop.left), np.int32), np.array((crop.height, crop.width), np.int32)
            return Sample(np.frombuffer(encoded, np.uint8), start, shape, np.array(crop.flip, np.int32))
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
