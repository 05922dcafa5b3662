"""nvImageCodec's decoder: encoded images and crops in, one uint8 batch out, made on the GPU or the CPU.

The calls are the same on both. On the GPU all work is ordered by the training stream: the decoder's own streams wait
for it and it waits for them, and the host continues as soon as the work is queued.
"""

from __future__ import annotations

import importlib
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from vitprof.engine.decode import Crop
from vitprof.errors import ConfigError, DataError, one_line

PIP = "pip install 'nvidia-nvimgcodec-cu13[nvjpeg]'"
"""How to install it. Without nvJPEG it would decode JPEG on the CPU only."""
LIKE_THE_OTHERS = ":fancy_upsampling=1"
"""Option that makes nvJPEG interpolate chroma, as libjpeg does for the other decoders; by default it repeats it."""


class Sample(NamedTuple):
    """One image to decode."""

    region: Any
    """Its bytes, restricted to the crop (`nvimgcodec.CodeStream`)."""
    flip: bool
    """Whether to mirror it."""


class BatchDecoder:
    """A decoder of batches of JPEG files to images of one size.

    Raises `ConfigError` if nvImageCodec is missing, `DataError` if it cannot decode on `device`.
    """

    def __init__(self, size: int, workers: int, device: torch.device) -> None:
        # It would report what it cannot decode on standard error; here an error names the file instead.
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
        try:
            self._library: Any = importlib.import_module("nvidia.nvimgcodec")
        except (ImportError, OSError) as error:
            raise ConfigError(
                "loader",
                "nvimgcodec",
                f"NVIDIA nvImageCodec cannot be imported ({one_line(error)}); {PIP}, or choose threads",
            ) from error
        library = self._library
        self._size, self._device = size, device
        self._on_gpu = on_gpu = device.type == "cuda"
        # Only these: otherwise it would silently fall back to the CPU, and the run would claim to decode on the GPU.
        kinds = (library.HW_GPU_ONLY, library.GPU_ONLY, library.HYBRID_CPU_GPU) if on_gpu else (library.CPU_ONLY,)
        self._parameters = library.DecodeParams(
            apply_exif_orientation=False,  # no other decoder rotates images by their EXIF orientation
            color_spec=library.SRGB,
            sample_format=library.I_RGB,
        )
        self._in_use: deque[tuple[torch.cuda.Event, list[Tensor]]] = deque()
        try:
            self._decoder: Any = library.Decoder(
                device_id=device.index if on_gpu else library.NVIMGCODEC_DEVICE_CPU_ONLY,
                max_num_cpu_threads=workers,
                backends=[library.Backend(kind) for kind in kinds],
                options=LIKE_THE_OTHERS,
            )
            nothing = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
            (tried,) = self._decode([self.sample(nothing, Crop(0, 0, 16, 16))])
        except RuntimeError as error:  # nvImageCodec has no class of its own for it
            raise DataError(
                f"nvImageCodec cannot start on {device} ({one_line(error)}); choose loader threads"
            ) from error
        if tried is None:
            raise DataError(f"nvImageCodec cannot decode JPEG on {device}; {PIP}, or choose loader threads")

    def sample(self, encoded: bytes, crop: Crop) -> Sample:
        """Returns an image as `decode` takes it. Safe to call from several threads.

        Raises `ValueError` with a short reason for bytes whose header it cannot read.
        """
        library = self._library
        try:
            region = library.Region(crop.top, crop.left, crop.top + crop.height, crop.left + crop.width)
            return Sample(library.CodeStream(encoded).get_sub_code_stream(region=region), crop.flip)
        except RuntimeError as error:
            raise ValueError(f"nvImageCodec cannot read its header: {one_line(error)}") from error

    def decode(self, samples: Sequence[Sample]) -> tuple[Tensor, list[int]]:
        """Returns the images that could be decoded, (b, 3, size, size) uint8, and the positions of the others.

        Images are resized with antialiasing, as Pillow does. Work on the GPU is queued in the current stream when this
        returns.
        """
        images, bad, rows = self._decode(samples), list[int](), list[Tensor]()
        for i, (image, (_, flip)) in enumerate(zip(images, samples, strict=True)):
            if image is None:
                bad.append(i)
                continue
            row = image.permute(2, 0, 1)[None]
            if self._on_gpu:
                row = row.float()  # CUDA cannot resize uint8; the CPU can, three times as fast as float
            row = F.interpolate(row, (self._size, self._size), mode="bilinear", align_corners=False, antialias=True)
            rows.append(row.flip(-1) if flip else row)
        if not rows:
            return torch.empty((0, 3, self._size, self._size), dtype=torch.uint8), bad
        batch = torch.cat(rows)
        if self._on_gpu:
            self._keep([image for image in images if image is not None])
            batch = batch.round_().to(torch.uint8)
        return batch, bad

    def _decode(self, samples: Sequence[Sample]) -> list[Tensor | None]:
        """Returns each image at its crop's size, (height, width, 3) uint8; None for one that cannot be decoded."""
        if not samples:
            return []
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._on_gpu else 0
        regions = [sample.region for sample in samples]
        images = self._decoder.decode(regions, params=self._parameters, cuda_stream=stream)
        # Nothing is copied; a tensor keeps the decoder's memory alive as long as it exists.
        as_tensor = from_dlpack if self._on_gpu else _on_the_host
        return [None if image is None else as_tensor(image) for image in images]

    def _keep(self, images: list[Tensor]) -> None:
        """Keeps decoded images until the GPU has resized them.

        Otherwise the next images could be decoded into their memory: nvJPEG's hardware engine does not wait for work
        queued in its stream (seen on H100; TorchCodec 0.17, DecodeJpegCuda.cpp).
        """
        while self._in_use and self._in_use[0][0].query():  # type: ignore[no-untyped-call]
            self._in_use.popleft()
        resized = torch.cuda.Event()  # type: ignore[no-untyped-call]
        resized.record(torch.cuda.current_stream(self._device))
        self._in_use.append((resized, images))

    def close(self) -> None:
        """Ends the decoder's threads and releases its memory."""
        if self._in_use:
            torch.cuda.current_stream(self._device).synchronize()
            self._in_use.clear()
        self._decoder.__exit__(None, None, None)


def _on_the_host(image: Any) -> Tensor:
    # DLPack would need CUDA's driver even for host memory.
    return torch.from_numpy(np.asarray(image))
