"""NVIDIA DALI: its pipeline decodes, crops, resizes and flips JPEG files, on the CPU or on the GPU.

The encoded files come from the storage, read by threads of this process a few batches ahead, so any storage and any
location works. The crops are those of `making.EncodedMaker`, so every strategy trains on the same images; DALI resizes
with antialiasing, as Pillow does.

A file that is not a complete JPEG is found before DALI gets it. Damage inside the compressed data goes unnoticed here:
DALI decodes it silently where simplejpeg raises an error.
"""

from __future__ import annotations

import importlib
import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import simplejpeg
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from vitprof.config import RunConfig
from vitprof.config.accelerators import is_simulated
from vitprof.config.catalog import DatasetInfo
from vitprof.config.gpu_findings import dali_wheel
from vitprof.engine.loaders.batch_assembly import EncodedMaker, images_first
from vitprof.engine.loaders.contract import Batch, Schedule
from vitprof.engine.loaders.encoded_reads import BatchReads, EncodedReads, Sample
from vitprof.engine.storage.contract import EncodedStorage
from vitprof.errors import ConfigError, DataError
from vitprof.measure.devices import Mark
from vitprof.measure.devices.cuda_checks import cuda_here
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import asked_wait
from vitprof.telemetry.visible import number_here, shown_here

INPUTS = ("encoded", "start", "shape", "flip")
"""Names of the pipeline's inputs, in the order of `Sample`."""


@dataclass
class UnderWay:
    """A batch that is being read or decoded."""

    reads: BatchReads
    in_pipeline: bool = False
    good: Tensor | None = None
    """Indices of the samples that could be read."""
    unreadable: tuple[str, ...] = ()
    failure: BaseException | None = None
    """What reading raised; raised when the batch's turn comes."""


class DaliLoader:
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
        self._schedule = Schedule(storage, config, train=train)
        self._storage = storage
        self._make = EncodedMaker(storage, info, config, train).punctual()
        self._times, self._wait = config.loader_times, asked_wait(config, train=train)
        self._depth = config.prefetch_factor or 1
        self._device = decoding_device(config.device)
        # The loop receives a batch that the GPU is still decoding, and the training stream waits for it unseen. What
        # the stream does up to this mark is decoding.
        self._mark = mark if self._device.type == "cuda" else None
        largest = min(self._schedule.batch_size, self._schedule.n)
        self._pipeline = open_pipeline(info.image_size, largest, config.workers or 1, self._depth, self._device)
        self._reads = EncodedReads(storage, self._make, config, self._wait)
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
            samples, batch.good, batch.unreadable = batch.reads.result()
        except BaseException as error:
            batch.failure = error
            return batch
        if samples:
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
            return self._blame(epoch, batch, error)
        decoded = self._mark() if self._mark is not None else None
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


def open_pipeline(size: int, batch_size: int, workers: int, depth: int, device: torch.device) -> Any:
    """Returns a DALI pipeline that has already run, for images (b, size, size, 3) uint8 from `workers` threads.

    Raises `ConfigError` if DALI is missing, `DataError` if it fails.
    """
    try:
        dali, fn, types = (importlib.import_module(f"nvidia.dali{part}") for part in ("", ".fn", ".types"))
    except (ImportError, OSError) as error:
        wheel = dali_wheel(shown_here())
        raise ConfigError(
            "loader",
            "dali",
            f"NVIDIA DALI cannot be imported ({reason(error)}); pip install {wheel}, or choose threads",
        ) from error
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
                adjust_orientation=False,  # no other decoder rotates images by their EXIF orientation
            )
            images = fn.resize(images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True)
            pipeline.set_outputs(fn.flip(images, horizontal=flip, vertical=0))
        pipeline.build()
        # The first call of schedule_run fills DALI's queue with `depth` runs; later calls run once.
        nothing = simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))
        corner, whole = np.array((0, 0), np.int32), np.array((8, 8), np.int32)
        for _ in range(depth):
            feed(pipeline, [Sample(np.frombuffer(nothing, np.uint8), corner, whole, np.array(0, np.int32))])
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

    Deletion may come late, because the traceback of an error that DALI raised keeps the object. Deleted in a DataLoader
    worker that was forked meanwhile, it would wait forever for threads that do not exist there.
    """
    if pipeline is not None:
        pipeline.__del__()


def feed(pipeline: Any, samples: list[Sample]) -> None:
    """Gives the samples of one batch to the pipeline's inputs."""
    for name, values in zip(INPUTS, zip(*samples, strict=True), strict=True):
        pipeline.feed_input(name, list(values))


def reason(error: Exception) -> str:
    """Returns the line of DALI's message that says what is wrong.

    It is the last informative one; those before it quote the pipeline's definition.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if not line.startswith(("Current pipeline object", "Critical error"))]
    return informative[-1] if informative else type(error).__name__


def decoding_device(name: str) -> torch.device:
    """Returns the device to decode on for the device called `name`: the training GPU, or the CPU if there is none."""
    if name == "cpu" or is_simulated(name) or not cuda_here():
        return torch.device("cpu")
    return torch.device("cuda", number_here("cuda:0" if name == "auto" else name))
