"""A split as one array: a .npy file mapped into memory, or tensors in memory (uint8, or float as a TensorDataset)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.data.mnist import read_split
from vitprof.engine.storage.contract import (
    Format,
    Pixels,
    PixelStorage,
    Place,
    SplitFacts,
    SplitWriter,
    StoredSplit,
    image_bytes,
    read_labels,
)
from vitprof.errors import DataError
from vitprof.formats import size
from vitprof.measure.stopwatch import Stopwatch


class Writer(SplitWriter):
    """A writer of train.npy or test.npy, chunk after chunk.

    It uses write calls, not a mapping: on a full disk a write call fails with an error, while writing to mapped memory
    kills the process (SIGBUS).
    """

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        self._file = (directory / f"{split.name}.npy").open("wb")
        header = {"descr": "|u1", "fortran_order": False, "shape": (split.n, *split.shape)}
        npy.write_array_header_1_0(self._file, header)

    def add(self, start: int, images: NDArray[np.uint8]) -> None:
        self._file.write(np.ascontiguousarray(images).reshape(-1).data)

    def close(self) -> None:
        self._file.close()


FORMAT = Format(1, "pixels", Writer, image_bytes)


class MemmapStorage(StoredSplit):
    """Images in a mapped file: one gather of rows for each batch.

    It gives the system no advice (madvise). From a cold cache MADV_RANDOM read 0.05 times as fast for rows of 150 kB,
    since it turns readahead off, and MADV_WILLNEED for each row was no faster than no advice. From a warm cache all
    three were equally fast.
    """

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._path = place.root / f"{self._split}.npy"
        self._image_bytes = image_bytes(info)
        self.labels = read_labels(place.root, train=train)
        self._here()

    def _open(self) -> Tensor:
        self._place.reading(0, 1)
        try:
            # "c" (private), since torch warns about arrays that cannot be written to; nothing is ever written
            images = np.load(self._path, mmap_mode="c", allow_pickle=False)
        except FileNotFoundError:
            raise self._unusable("cannot be read (it is missing)") from None
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror or error})") from error
        except (ValueError, EOFError, OverflowError) as error:  # NumPy's message advises to trust the file
            raise self._unusable("cannot be read (it is not an array of numbers, or it is damaged)") from error
        if not isinstance(images, np.memmap):
            raise self._unusable("is not a .npy file")
        if images.dtype != np.uint8 or images.shape != (len(self), *self.shape):
            raise self._unusable(f"holds {images.dtype} {images.shape}, not uint8 {(len(self), *self.shape)}")
        return torch.from_numpy(images)

    def _unusable(self, reason: str) -> DataError:
        return DataError(f"{self._path} {reason}; {self._remedy}")

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        self._place.reading(len(indices) * self._image_bytes)
        # as fast as np.take(out=, mode="clip"), and raises an error for a wrong index
        return torch.index_select(self._here(), 0, indices, out=out)


IMAGES_AT_ONCE = 256
"""Images copied or converted at once, so that the whole set is never in memory twice."""


class MemoryStorage:
    """Images (n, height, width, channels) uint8 and labels (n,) int64, contiguous on one device."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels
        _, height, width, channels = images.shape
        self.shape = (height, width, channels)
        self.device = images.device
        """Where images and labels are, and where the indices given to `read` must be."""

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.index_select(self.images, 0, indices, out=out)

    def to(self, device: torch.device) -> MemoryStorage:
        """Returns the same storage on `device`."""
        return MemoryStorage(self.images.to(device), self.labels.to(device))

    def close(self) -> None:
        """Does nothing: no file is open."""


class FloatStorage:
    """Images (n, channels, height, width) float32 in 0..1 and labels (n,) int64, as the article keeps them."""

    pixels: Pixels = "unit"

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def dataset(self, stopwatch: Stopwatch | None = None) -> Dataset[tuple[Tensor, int | Tensor]]:
        if stopwatch is not None:
            stopwatch.rest = "read"  # a sample is a row of the tensor as it is
        return TensorDataset(self.images, self.labels)  # type: ignore[return-value]  # two tensors make pairs

    def close(self) -> None:
        """Does nothing: no file is open."""


def open_uint8(info: DatasetInfo, place: Place, train: bool) -> MemoryStorage:
    """Returns the split as stored, one byte for each pixel value.

    Raises `DataError` if the files cannot be read or the split does not fit into memory.
    """
    source = _stored(info, place, train)
    if isinstance(source, MemoryStorage):
        return source
    ensure_memory(len(source) * math.prod(source.shape), f"the {'train' if train else 'test'} split of {info.name}")
    images = torch.empty((len(source), *source.shape), dtype=torch.uint8)
    for start in range(0, len(source), IMAGES_AT_ONCE):
        rows = torch.arange(start, min(start + IMAGES_AT_ONCE, len(source)))
        source.read(rows, images[start : start + IMAGES_AT_ONCE])
    source.close()
    return MemoryStorage(images, source.labels)


def open_float(info: DatasetInfo, place: Place, train: bool) -> FloatStorage:
    """Returns the split as one float32 tensor scaled to 0..1: four bytes for each pixel value.

    Raises `DataError` as `open_uint8` does.
    """
    source = _stored(info, place, train)
    ensure_memory(4 * len(source) * math.prod(source.shape), f"the {'train' if train else 'test'} split of {info.name}")
    height, width, channels = source.shape
    images = torch.empty((len(source), channels, height, width))
    for start in range(0, len(source), IMAGES_AT_ONCE):
        rows = torch.arange(start, min(start + IMAGES_AT_ONCE, len(source)))
        images[start : start + IMAGES_AT_ONCE] = source.read(rows).permute(0, 3, 1, 2)
    source.close()
    return FloatStorage(images.div_(255), source.labels)


def ensure_memory(needed_bytes: int, what: str) -> None:
    """Raises `DataError` if less than `needed_bytes` of memory are available, before the system kills the process."""
    available_bytes = psutil.virtual_memory().available
    if available_bytes < needed_bytes:
        raise DataError(
            f"not enough memory: {what} needs {size(needed_bytes)} and {size(available_bytes)} are available; "
            "choose a storage on disk or fewer images"
        )


def _stored(info: DatasetInfo, place: Place, train: bool) -> PixelStorage:
    """Returns a storage of the images: IDX files read into memory, or the array on disk that other sets have."""
    if info.kind != "idx":
        return MemmapStorage(info, place, train)
    images, labels = read_split(place.root, train)
    return MemoryStorage(torch.from_numpy(images).unsqueeze(3), torch.from_numpy(labels))
