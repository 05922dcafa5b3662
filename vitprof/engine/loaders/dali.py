"""NVIDIA DALI: its pipeline decodes, crops, resizes and flips JPEG files, on the CPU or on the GPU.

The encoded files come from the storage, read by threads of this process a few batches ahead, so any
storage and any location works. The crops are those of `EncodedMaker`, so every strategy trains on
the same images; DALI resizes with antialiasing, as Pillow does.

A file that is not a complete JPEG is found before DALI gets it. Damage inside the compressed data
goes unnoticed here: DALI decodes it silently where simplejpeg raises an error.
"""

from __future__ import annotations

import importlib
import math
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from vitprof.config import RunConfig, accelerators, gpu_findings
from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine.decoders import check_end, jpeg_header
from vitprof.engine.loaders.batch_assembly import EncodedMaker
from vitprof.engine.loaders.batches import Pieces, PoolLoader, end_work
from vitprof.engine.loaders.contract import Batch, Schedule
from vitprof.engine.storage.contract import EncodedStorage
from vitprof.engine.transforms import Crop
from vitprof.errors import ConfigError, DataError, SampleError
from vitprof.measure.devices import cuda_findings
from vitprof.measure.stage_look import LookSchedule
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import Stopwatch, requested_wait
from vitprof.telemetry.visible import number_here, shown_here


class Sample(NamedTuple):
    """The inputs of the pipeline for one sample; the fields are their names there."""

    encoded: NDArray[np.uint8]
    """The bytes of a JPEG file."""
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


class DecodingBatch(Pieces):
    """A batch that is being read, then decoded."""

    def __init__(self, loader: DaliLoader, epoch: int, indices: torch.Tensor) -> None:
        self.begun_s = perf_counter()
        self.in_pipeline = False
        chosen = indices.tolist()

        def read(part: slice, stopwatch: Stopwatch) -> list[Sample | str]:
            return [loader.sample(epoch, index, stopwatch) for index in chosen[part]]

        super().__init__(loader, indices, read)

    def samples(self) -> list[Sample | str]:
        """Waits until it is read.

        Returns its samples, error messages for unreadable ones. Raises what reading did.
        """
        return [sample for piece in self.futures for sample in piece.result()]


class DaliEpoch:
    """An epoch of which some batches are being read, and some are in the pipeline."""

    def __init__(self, loader: DaliLoader, epoch: int) -> None:
        self._loader = loader
        self._epoch = epoch
        self._to_come = iter(loader.schedule.batches(epoch))
        self._reading: deque[DecodingBatch] = deque()
        self._decoding: deque[DecodingBatch] = deque()

    def batches(self) -> Generator[Batch, None, None]:
        self._go_on()
        while self._decoding:
            batch = self._loader.finish(self._epoch, self._decoding.popleft())
            # Before the batch is trained on, so that DALI has work meanwhile.
            self._go_on()
            yield batch

    def _go_on(self) -> None:
        """Begins to read batches and gives them to the pipeline, as many as fit.

        It waits for what is being read only where the pipeline has nothing to decode.
        """
        reading = self._reading
        decoding = self._decoding
        depth = self._loader.depth
        while True:
            while len(reading) < depth:
                indices = next(self._to_come, None)
                if indices is None:
                    break
                reading.append(DecodingBatch(self._loader, self._epoch, indices))
            if not reading or len(decoding) == depth:
                return
            if decoding and not all(piece.done() for piece in reading[0].futures):
                return
            decoding.append(self._loader.feed(reading.popleft()))

    def end(self) -> None:
        self._to_come = iter(())
        end_work(self._reading)
        while self._decoding:
            if self._decoding.popleft().in_pipeline:
                # That batch is no longer wanted.
                with suppress(Exception):
                    self._loader.output()


class DaliLoader(PoolLoader):
    """A loader that keeps `prefetch_factor` batches being read, and as many in a DALI pipeline of
    `workers` threads.
    """

    def __init__(
        self,
        storage: EncodedStorage,
        info: DatasetInfo,
        config: RunConfig,
        train: bool,
        mark: Callable[[], Any] | None,
    ) -> None:
        wait = requested_wait(config, train=train)
        super().__init__(Schedule(storage, config, train=train), config, wait, "vitprof-dali-read")
        self._storage = storage
        self._times = config.loader_times
        self._skip = config.skip_unreadable
        # It makes only what DALI cannot, and what it reads waited before.
        self._make = EncodedMaker(storage, info, replace(config, inject=None), train)
        # What it makes in place of DALI says nothing of the other batches.
        self._make.looks = LookSchedule(is_on=False)
        self._device = decoding_device(config.device)
        self._on_gpu = self._device.type == "cuda"
        # The loop receives a batch that the GPU is still decoding, and the training stream waits
        # for it unseen. What the stream does up to this mark is decoding.
        self._mark = mark if self._on_gpu else None
        largest = min(self.schedule.batch_size, self.schedule.n)
        self._pipeline = open_pipeline(
            info.image_size, largest, self.workers, self.depth, self._device
        )

    def _begin(self, epoch: int) -> DaliEpoch:
        return DaliEpoch(self, epoch)

    def sample(self, epoch: int, index: int, stopwatch: Stopwatch) -> Sample | str:
        """Returns a sample as the pipeline gets it; the error message of one that is skipped."""
        try:
            begun = perf_counter()
            stopwatch.wait("read")
            encoded = self._storage.read_encoded(index)
            stopwatch.read_s += perf_counter() - begun
            try:
                height, width, _ = jpeg_header(encoded)
                # A decoder that decodes only the crop's rows would not notice a missing end.
                check_end(encoded)
            except ValueError as error:
                raise self._make.undecodable(index, error) from error
            return Sample.of(encoded, self._make.crop(epoch, index)(height, width))
        except SampleError as error:
            if not self._skip:
                raise
            return str(error)

    def feed(self, batch: DecodingBatch) -> DecodingBatch:
        """Gives what could be read of a batch to the pipeline, and what reading raised to the
        batch's turn.
        """
        wait(batch.futures)
        if any(piece.exception() for piece in batch.futures):
            return batch
        samples = [sample for sample in batch.samples() if not isinstance(sample, str)]
        if samples:
            feed(self._pipeline, samples)
            self._pipeline.schedule_run()
            batch.in_pipeline = True
        return batch

    def finish(self, epoch: int, batch: DecodingBatch) -> Batch:
        """Returns the batch, whose images the device may be decoding still.

        Raises what reading it raised.
        """
        samples = batch.samples()
        unreadable = tuple(sample for sample in samples if isinstance(sample, str))
        if not batch.in_pipeline:
            images = torch.empty((0, *self._make.shape), dtype=torch.uint8)
            return Batch(images.permute(0, 3, 1, 2), self._storage.labels[:0], unreadable)
        try:
            images = self.output()
        except Exception as error:
            # DALI has no class of its own for it.
            return self._without_undecodable(epoch, batch, len(unreadable), error)
        decoded = None
        if self._mark is not None:
            decoded = self._mark()
        indices = batch.indices
        if unreadable:
            indices = indices[torch.tensor([not isinstance(sample, str) for sample in samples])]
        labels = self._storage.labels.index_select(0, indices)
        made = None
        if self._times:
            # DALI reports neither its parts nor its end: the batch is handed over now.
            read_s = sum(stopwatch.read_s for stopwatch in batch.stopwatches)
            made = BatchTimes(read_s, math.nan, 0.0, math.nan, batch.begun_s, perf_counter())
        return Batch(images.permute(0, 3, 1, 2), labels, unreadable, made, decoded)

    def output(self) -> torch.Tensor:
        """Returns the pipeline's next images, which the device may be decoding still."""
        # Bound to the stream that will read it: that stream, not this thread, waits until it is
        # ready, and its memory is not used again before it is read.
        stream = torch.cuda.current_stream(self._device) if self._on_gpu else None
        (images,) = self._pipeline.share_outputs(stream)
        try:
            # Nothing is copied; the tensor keeps DALI's memory alive as long as it exists.
            return from_dlpack(images.as_tensor())
        finally:
            self._pipeline.release_outputs()

    def _without_undecodable(
        self, epoch: int, batch: DecodingBatch, n_unreadable: int, error: Exception
    ) -> Batch:
        """Returns the batch that DALI failed for as a whole, made with simplejpeg, one sample after
        another.
        """
        made = self._make(epoch, batch.indices)
        if len(made.unreadable) == n_unreadable:
            raise DataError(
                f"DALI cannot decode a batch in which simplejpeg finds nothing wrong ({reason(error)}); "
                "choose loader threads"
            ) from error
        return made

    def close(self) -> None:
        super().close()
        end_pipeline(self._pipeline)
        self._pipeline = None


def open_pipeline(
    size: int, batch_size: int, workers: int, depth: int, device: torch.device
) -> Any:
    """Returns a DALI pipeline that has already run, for images (b, size, size, 3) uint8 from
    `workers` threads.

    Raises `ConfigError` if DALI is missing, `DataError` if it fails.
    """
    try:
        dali = importlib.import_module("nvidia.dali")
        fn = importlib.import_module("nvidia.dali.fn")
        types = importlib.import_module("nvidia.dali.types")
    except (ImportError, OSError) as error:
        wheel = gpu_findings.dali_wheel(shown_here())
        message = f"NVIDIA DALI cannot be imported ({reason(error)}); pip install {wheel}, or choose threads"
        raise ConfigError("loader", "dali", message) from error
    pipeline = None
    try:
        pipeline = dali.Pipeline(
            batch_size=batch_size,
            num_threads=workers,
            # None on the CPU, so that it does not touch a GPU.
            device_id=device.index,
            prefetch_queue_depth=depth,
            # Outputs stay valid while the next ones are made.
            exec_dynamic=True,
        )
        with pipeline:
            # Their names are the fields of `Sample`.
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            start = fn.external_source(name="start", dtype=types.INT32, ndim=1)
            shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
            flip = fn.external_source(name="flip", dtype=types.INT32, ndim=0)
            images = fn.decoders.image_slice(
                encoded,
                device="mixed" if device.type == "cuda" else "cpu",
                start=start,
                shape=shape,
                axis_names="HW",
                output_type=types.RGB,
                # No other decoder rotates images by their EXIF orientation.
                adjust_orientation=False,
            )
            images = fn.resize(
                images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True
            )
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
    except Exception as error:
        # DALI has no class of its own for it.
        end_pipeline(pipeline)
        raise DataError(
            f"DALI cannot start on {device} ({reason(error)}); choose loader threads"
        ) from error
    return pipeline


def end_pipeline(pipeline: Any) -> None:
    """Ends the pipeline's threads, as its deletion would. May be called twice.

    Deletion may come late, because the traceback of an error that DALI raised keeps the object.
    Deleted in a DataLoader worker that was forked meanwhile, it would wait forever for threads that
    do not exist there.
    """
    if pipeline is not None:
        pipeline.__del__()


def feed(pipeline: Any, samples: list[Sample]) -> None:
    """Gives the samples of one batch to the pipeline's inputs."""
    for name, values in zip(Sample._fields, zip(*samples, strict=True), strict=True):
        pipeline.feed_input(name, list(values))


def reason(error: Exception) -> str:
    """Returns the line of DALI's message that says what is wrong.

    It is the last informative one; those before it quote the pipeline's definition.
    """
    headings = ("Current pipeline object", "Critical error")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if not line.startswith(headings)]
    return informative[-1] if informative else type(error).__name__


def decoding_device(name: str) -> torch.device:
    """Returns the device to decode on for the device called `name`: the training GPU, or the CPU if
    there is none.
    """
    if name == "cpu" or accelerators.is_simulated(name) or not cuda_findings.cuda_here():
        return torch.device("cpu")
    if name == "auto":
        name = "cuda:0"
    return torch.device("cuda", number_here(name))
