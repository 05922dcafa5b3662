"""The DALI pipeline itself: encoded images and crop windows in, uint8 images of one size out."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray

from vitprof.config.gpu_software import dali_wheel
from vitprof.errors import ConfigError, DataError
from vitprof.telemetry import shown_here

INPUTS = ("encoded", "start", "shape", "flip")
"""Names of the pipeline's inputs, in the order of `Sample`."""


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
