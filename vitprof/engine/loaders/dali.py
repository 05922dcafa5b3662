"""NVIDIA DALI: its pipeline decodes, crops, resizes and flips JPEG files, on the CPU or on the GPU. The crops are those
of `EncodedMaker`, so every strategy trains on the same images; DALI resizes with antialiasing, as Pillow does.
"""

from __future__ import annotations

import importlib
import math
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from vitprof.config import RunConfig, accelerators, gpu_findings
from vitprof.config.catalog import DatasetInfo
from vitprof.engine.decoders import check_end, jpeg_size
from vitprof.engine.loaders.batch_assembly import EncodedMaker, images_first
from vitprof.engine.loaders.contract import Batch, Schedule
from vitprof.engine.storage.contract import EncodedStorage
from vitprof.engine.transforms import Crop
from vitprof.errors import ConfigError, DataError, SampleError
from vitprof.measure.devices import Mark, cuda
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import Stopwatch, asked_wait
from vitprof.telemetry.visible import number_here, shown_here

TASKS_A_WORKER = 4
"""Pieces of a batch for each reading thread."""


class Sample(NamedTuple):
    """The inputs of the pipeline for one sample; the fields are their names there."""

    encoded: NDArray[np.uint8]
    start: NDArray[np.int32]
    """(top, left) of the crop in pixels of the original."""
    shape: NDArray[np.int32]
    """(height, width) of the crop."""
    flip: NDArray[np.int32]
    """(), 1 to mirror it"""

    @classmethod
    def of(cls, encoded: bytes, crop: Crop) -> Sample:
        """Returns the inputs for the `crop` of an image."""
        top, left, height, width, flip = crop
        corners = np.array((top, left), np.int32), np.array((height, width), np.int32)
        return cls(np.frombuffer(encoded, np.uint8), *corners, np.array(flip, np.int32))


@dataclass
class UnderWay:
    """A batch that is being read or decoded."""

    indices: torch.Tensor
    """(b,) int64"""
    pieces: list[Future[list[Sample | str]]]
    stopwatches: list[Stopwatch]
    begun_s: float = field(default_factory=perf_counter)
    """When reading was requested, on the host's monotonic clock."""
    in_pipeline: bool = False
    good: torch.Tensor | None = None
    """Indices of the samples that could be read."""
    unreadable: tuple[str, ...] = ()
    failure: BaseException | None = None
    """What reading raised; raised when the batch's turn comes."""

    def read(self) -> list[Sample]:
        """Waits until it is read. Returns the samples that could be read, in their order; keeps what was raised."""
        wait(self.pieces)
        try:
            samples = [sample for piece in self.pieces for sample in piece.result()]
        except BaseException as error:
            self.failure = error
            return []
        self.unreadable = tuple(sample for sample in samples if isinstance(sample, str))
        readable = [not isinstance(sample, str) for sample in samples]
        self.good = self.indices[torch.tensor(readable)] if self.unreadable else self.indices
        return [sample for sample in samples if not isinstance(sample, str)]

    def times(self) -> BatchTimes:
        """Returns the times of the batch, which is handed over now: DALI reports neither its parts nor its end."""
        read_s = sum(stopwatch.read_s for stopwatch in self.stopwatches)
        return BatchTimes(read_s, math.nan, 0.0, math.nan, self.begun_s, perf_counter())


class DaliLoader:
    """A loader that keeps `prefetch_factor` batches being read, and as many in a DALI pipeline of `workers` threads."""

    def __init__(
        self,
        storage: EncodedStorage,
        info: DatasetInfo,
        config: RunConfig,
        train: bool,
        mark: Callable[[], Mark] | None,
    ) -> None:
        self._schedule = Schedule(storage, config, train=train)
        self._storage = storage
        self._make = EncodedMaker(storage, info, config, train).punctual()
        self._times, self._wait = config.loader_times, asked_wait(config, train=train)
        self._skip = config.skip_unreadable
        self._depth, self._workers = config.prefetch_factor or 1, config.workers or 1
        self._device = decoding_device(config.device)
        # The loop receives a batch that the GPU is still decoding, and the training stream waits for it unseen. What
        # the stream does up to this mark is decoding.
        self._mark = mark if self._device.type == "cuda" else None
        largest = min(self._schedule.batch_size, self._schedule.n)
        self._pipeline = open_pipeline(info.image_size, largest, self._workers, self._depth, self._device)
        self._pool = ThreadPoolExecutor(self._workers, "vitprof-dali-read")
        self._reading: deque[UnderWay] = deque()
        self._decoding: deque[UnderWay] = deque()

    def __len__(self) -> int:
        return len(self._schedule)

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
                    reading.append(self._begin(epoch, indices))
                if not reading or len(decoding) == self._depth:
                    return
                if decoding and not all(piece.done() for piece in reading[0].pieces):
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

    def _begin(self, epoch: int, indices: torch.Tensor) -> UnderWay:
        chosen = indices.tolist()
        piece = max(1, -(-len(chosen) // (self._workers * TASKS_A_WORKER)))
        starts = range(0, len(chosen), piece)
        stopwatches = [Stopwatch(self._wait if start == 0 else None) for start in starts]

        def read(start: int, stopwatch: Stopwatch) -> list[Sample | str]:
            return [self._sample(epoch, index, stopwatch) for index in chosen[start : start + piece]]

        pieces = [self._pool.submit(read, *args) for args in zip(starts, stopwatches, strict=True)]
        return UnderWay(indices, pieces, stopwatches)

    def _sample(self, epoch: int, index: int, stopwatch: Stopwatch) -> Sample | str:
        try:
            begun = perf_counter()
            stopwatch.wait("read")
            encoded = self._storage.read_encoded(index)
            stopwatch.read_s += perf_counter() - begun
            try:
                height, width = jpeg_size(encoded)
                check_end(encoded)  # a decoder that decodes only the crop's rows would not notice a missing end
            except ValueError as error:
                raise self._make.undecodable(index, error) from error
            return Sample.of(encoded, self._make.crop(epoch, index)(height, width))
        except SampleError as error:
            if not self._skip:
                raise
            return str(error)

    def _feed(self, batch: UnderWay) -> UnderWay:
        if samples := batch.read():
            feed(self._pipeline, samples)
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
            return self._without_undecodable(epoch, batch, error)
        decoded = self._mark() if self._mark is not None else None
        labels = self._storage.labels.index_select(0, batch.good)
        return Batch(images_first(images), labels, batch.unreadable, batch.times() if self._times else None, decoded)

    def _output(self) -> torch.Tensor:
        # Bound to the stream that will read it: that stream, not this thread, waits until it is ready, and its memory
        # is not used again before it is read.
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        (images,) = self._pipeline.share_outputs(stream)
        try:
            # Nothing is copied; the tensor keeps DALI's memory alive as long as it exists.
            return from_dlpack(images.as_tensor())
        finally:
            self._pipeline.release_outputs()

    def _without_undecodable(self, epoch: int, batch: UnderWay, error: Exception) -> Batch:
        """Returns the batch that DALI failed for as a whole, made with simplejpeg, one sample after another."""
        made = self._make(epoch, batch.indices)
        if len(made.unreadable) == len(batch.unreadable):
            raise DataError(
                f"DALI cannot decode a batch in which simplejpeg finds nothing wrong ({reason(error)}); "
                "choose loader threads"
            ) from error
        return made

    def _break_off(self) -> None:
        pieces = [piece for batch in self._reading for piece in batch.pieces]
        wait([piece for piece in pieces if not piece.cancel()])
        self._reading.clear()
        while self._decoding:
            if self._decoding.popleft().in_pipeline:
                with suppress(Exception):  # that batch is no longer wanted
                    self._output()

    def close(self) -> None:
        self._break_off()
        self._pool.shutdown(wait=True, cancel_futures=True)
        end_pipeline(self._pipeline)
        self._pipeline = None


def open_pipeline(size: int, batch_size: int, workers: int, depth: int, device: torch.device) -> Any:
    """Returns a DALI pipeline that has already run, for images (b, size, size, 3) uint8."""
    try:
        dali, fn, types = (importlib.import_module(f"nvidia.dali{part}") for part in ("", ".fn", ".types"))
    except (ImportError, OSError) as error:
        wheel = gpu_findings.dali_wheel(shown_here())
        message = f"NVIDIA DALI cannot be imported ({reason(error)}); pip install {wheel}, or choose threads"
        raise ConfigError("loader", "dali", message) from error
    pipeline = None
    try:
        pipeline = dali.Pipeline(
            batch_size=batch_size,
            num_threads=workers,
            device_id=device.index,  # None on the CPU, so that it does not touch a GPU
            prefetch_queue_depth=depth,
            exec_dynamic=True,  # outputs stay valid while the next ones are made
        )
        with pipeline:
            encoded, start, shape = (
                fn.external_source(name=name, dtype=dtype, ndim=1)
                for name, dtype in zip(Sample._fields, (types.UINT8, types.INT32, types.INT32), strict=False)
            )
            flip = fn.external_source(name="flip", dtype=types.INT32, ndim=0)
            images = fn.decoders.image_slice(
                encoded,
                device="mixed" if device.type == "cuda" else "cpu",
                start=start,
                shape=shape,
                axis_names="HW",
                output_type=types.RGB,
                adjust_orientation=False,  # no other decoder rotates images by their EXIF orientation
            )
            images = fn.resize(images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True)
            pipeline.set_outputs(fn.flip(images, horizontal=flip, vertical=0))
        pipeline.build()
        # The first call of schedule_run fills DALI's queue with `depth` runs; later calls run once.
        nothing = simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))
        for _ in range(depth):
            feed(pipeline, [Sample.of(nothing, Crop(0, 0, 8, 8))])
        pipeline.schedule_run()
        for _ in range(depth):
            pipeline.share_outputs()
            pipeline.release_outputs()
    except Exception as error:  # DALI has no class of its own for it
        end_pipeline(pipeline)
        raise DataError(f"DALI cannot start on {device} ({reason(error)}); choose loader threads") from error
    return pipeline


def end_pipeline(pipeline: Any) -> None:
    """Ends the pipeline's threads, as its deletion would. May be called twice.

    Deletion may come late, since the traceback of an error keeps the object; in a worker forked meanwhile it would wait
    forever for threads that do not exist there.
    """
    if pipeline is not None:
        pipeline.__del__()


def feed(pipeline: Any, samples: list[Sample]) -> None:
    """Gives the samples of one batch to the pipeline's inputs."""
    for name, values in zip(Sample._fields, zip(*samples, strict=True), strict=True):
        pipeline.feed_input(name, list(values))


def reason(error: Exception) -> str:
    """Returns the line of DALI's message that says what is wrong: the last informative one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if not line.startswith(("Current pipeline object", "Critical error"))]
    return informative[-1] if informative else type(error).__name__


def decoding_device(name: str) -> torch.device:
    """Returns the device to decode on for the device called `name`: the training GPU, or the CPU if there is none."""
    if name == "cpu" or accelerators.is_simulated(name) or not cuda.cuda_here():
        return torch.device("cpu")
    return torch.device("cuda", number_here("cuda:0" if name == "auto" else name))
