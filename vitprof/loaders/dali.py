"""NVIDIA DALI: its pipeline decodes, crops, resizes and flips JPEG files, on the CPU or on the GPU.

The encoded files come from the storage, read by threads of this process a few batches ahead, so any storage and any
location works. The crops are those that `making.EncodedMaker` takes, so every strategy trains on the same images; DALI
resizes with antialiasing, as Pillow does.

A file that is no whole JPEG is found before DALI gets it. Damage inside the compressed data goes unnoticed here:
DALI decodes it without a word where simplejpeg raises.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from vitprof.batch import Batch
from vitprof.catalog import DatasetInfo
from vitprof.config import RunConfig
from vitprof.decode import Crop
from vitprof.errors import ConfigError, DataError, SampleError
from vitprof.loaders import Schedule
from vitprof.loaders.making import EncodedMaker, images_first
from vitprof.storage import EncodedStorage

TASKS_A_WORKER = 4
"""Pieces of a batch for each reading thread."""
INPUTS = ("encoded", "start", "shape", "flip")
"""Names of what the pipeline is fed with, in the order of `Sample`."""


class Sample(NamedTuple):
    """What the pipeline is fed with for one sample."""

    encoded: NDArray[np.uint8]
    start: NDArray[np.int32]
    """(top, left) of the crop in pixels of the original."""
    shape: NDArray[np.int32]
    """(height, width) of the crop."""
    flip: NDArray[np.int32]
    """(), 1 to mirror it"""


@dataclass
class UnderWay:
    """A batch that is being read or decoded."""

    indices: Tensor
    reads: list[Future[list[Sample | str]]]
    in_pipeline: bool = False
    good: Tensor | None = None
    """Indices of the samples that could be read."""
    unreadable: tuple[str, ...] = ()
    failure: BaseException | None = None
    """What reading raised; raised when the batch's turn comes."""

    def is_read(self) -> bool:
        """Whether taking the reads' results does not wait."""
        return all(read.done() for read in self.reads)


class DaliLoader:
    """Keeps `prefetch_factor` batches being read and as many in a DALI pipeline of `workers` threads."""

    def __init__(self, storage: EncodedStorage, info: DatasetInfo, config: RunConfig, *, train: bool) -> None:
        self._schedule = Schedule(storage, config, train=train)
        self._storage, self._skip = storage, config.skip_unreadable
        self._make = EncodedMaker(storage, info, config, train)
        self._workers, self._depth = config.workers or 1, config.prefetch_factor or 1
        self._device = _device(config.device)
        largest = min(self._schedule.batch_size, self._schedule.n)
        self._pipeline = _open_pipeline(info.image_size, largest, self._workers, self._depth, self._device)
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

        def read(start: int) -> list[Sample | str]:
            return [self._sample(epoch, index) for index in chosen[start : start + piece]]

        return UnderWay(indices, [self._pool.submit(read, start) for start in range(0, len(chosen), piece)])

    def _sample(self, epoch: int, index: int) -> Sample | str:
        """The sample as DALI takes it, or what is wrong with it where such samples are to be skipped."""
        try:
            encoded = self._storage.read_encoded(index)
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
        """Give a batch to the pipeline as soon as it is read."""
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
            _feed(self._pipeline, readable)
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
        return Batch(images_first(images), self._storage.labels.index_select(0, batch.good), batch.unreadable)

    def _output(self) -> Tensor:
        """The pipeline's next batch, (b, height, width, channels) uint8 where it was made. Raises what DALI raises."""
        # Bound to the stream that will read it: there it is ready, and its memory is not used again before.
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        (images,) = self._pipeline.share_outputs(stream)
        try:
            # Nothing is copied; the tensor keeps DALI's memory for as long as it lives.
            return from_dlpack(images.as_tensor())
        finally:
            self._pipeline.release_outputs()

    def _blame(self, epoch: int, batch: UnderWay, error: Exception) -> Batch:
        """The batch without what DALI could not decode, found by decoding one after another; DALI fails as a whole."""
        made = self._make(epoch, batch.indices)
        if len(made.unreadable) == len(batch.unreadable):
            raise DataError(
                f"DALI cannot decode a batch in which simplejpeg finds nothing wrong ({_reason(error)}); "
                "choose loader threads"
            ) from error
        return made

    def _break_off(self) -> None:
        """Cancel and wait for what is under way: nothing is read or decoded afterwards."""
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
        self._pipeline = None  # its threads end with it


def _device(name: str) -> torch.device:
    """Where to decode: on the GPU that trains, if one does."""
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda:0" if name == "auto" else name)


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


def _open_pipeline(size: int, batch_size: int, workers: int, depth: int, device: torch.device) -> Any:
    """A DALI pipeline that has run once. Raises `ConfigError` where DALI is missing, `DataError` where it fails."""
    try:
        dali, fn, types = (importlib.import_module(f"nvidia.dali{part}") for part in ("", ".fn", ".types"))
    except (ImportError, OSError) as error:
        raise ConfigError(
            "loader",
            "dali",
            f"NVIDIA DALI cannot be imported ({_reason(error)}); pip install nvidia-dali-cuda130, or choose threads",
        ) from error
    try:
        pipeline = dali.Pipeline(
            batch_size=batch_size,
            num_threads=workers,
            device_id=device.index,  # None on the CPU: it does not touch a GPU then
            prefetch_queue_depth=depth,
            exec_dynamic=True,  # its outputs stay valid while the next ones are made
        )
        with pipeline:
            encoded, start, shape = (
                fn.external_source(name=name, dtype=dtype, ndim=1)
                for name, dtype in zip(INPUTS, (types.UINT8, types.INT32, types.INT32), strict=False)
            )
            flip = fn.external_source(name="flip", dtype=types.INT32, ndim=0)
            images = fn.decoders.image_slice(
                encoded,
                device="mixed" if device.type == "cuda" else "cpu",
                start=start,
                shape=shape,
                axis_names="HW",
                output_type=types.RGB,
                adjust_orientation=False,  # no other decoder turns images by their EXIF orientation
            )
            images = fn.resize(images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True)
            pipeline.set_outputs(fn.flip(images, horizontal=flip, vertical=0))
        pipeline.build()
        # The first call of schedule_run fills DALI's queue: it runs `depth` times. Later ones run once.
        nothing = simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))
        corner, whole = np.array((0, 0), np.int32), np.array((8, 8), np.int32)
        for _ in range(depth):
            _feed(pipeline, [Sample(np.frombuffer(nothing, np.uint8), corner, whole, np.array(0, np.int32))])
        pipeline.schedule_run()
        for _ in range(depth):
            pipeline.share_outputs()
            pipeline.release_outputs()
    except Exception as error:  # DALI has no class of its own for it
        raise DataError(f"DALI cannot start on {device} ({_reason(error)}); choose loader threads") from error
    return pipeline


def _feed(pipeline: Any, samples: list[Sample]) -> None:
    for name, values in zip(INPUTS, zip(*samples, strict=True), strict=True):
        pipeline.feed_input(name, list(values))


def _reason(error: Exception) -> str:
    """The line that says what is wrong: DALI's last; it quotes the lines of the pipeline's definition before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if not line.startswith(("Current pipeline object", "Critical error"))]
    return informative[-1] if informative else type(error).__name__
