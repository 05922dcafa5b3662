"""Storages: how samples are kept and read. One file each, found by the names of `vitprof.config.parts.STORAGES`.

A storage gives one of three things (its form): finished samples one by one through a torch Dataset, uint8 pixels in
whole batches, or encoded images. `loaders` makes batches of them. A `Place` says where the files are and how fast they
can be read (`vitprof.engine.locations`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor
from torch.utils.data import Dataset

from vitprof.config.catalog import DatasetInfo
from vitprof.measure.stopwatch import Stopwatch

Pixels = Literal["uint8", "unit", "normalised"]
"""How images are given: uint8 as stored; float32 in 0..1; float32 minus the mean, divided by the standard deviation."""


class Throttle(Protocol):
    """A limit on reads to the speed of a slower drive. Shared by all processes that read; can be pickled."""

    def wait(self, n_bytes: int, n_files: int) -> None:
        """Returns when the drive would have delivered `n_bytes` from `n_files` freshly opened files."""

    def close(self) -> None:
        """Ends all waits, and holds no read back afterwards."""


@dataclass(frozen=True)
class Place:
    """Where a storage's files are, and how fast they can be read."""

    root: Path
    throttle: Throttle | None = None
    """None where reads are not held back."""

    def reading(self, n_bytes: int, n_files: int = 0) -> None:
        """Waits as long as the throttle says. Call it for every read, with its bytes and the files opened for it."""
        if self.throttle is not None:
            self.throttle.wait(n_bytes, n_files)


class Storage(Protocol):
    """One split of a data set, ready to be read. Can be pickled, and opens its files again in each process."""

    labels: Tensor
    """(n,) int64, in memory."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def close(self) -> None:
        """Closes what is open in this process."""


class SampleStorage(Storage, Protocol):
    """Form "samples": a Dataset as tutorials write it."""

    pixels: Pixels
    """How the Dataset gives images."""

    def dataset(self, stopwatch: Stopwatch | None = None) -> Dataset[tuple[Tensor, int | Tensor]]:
        """Returns the Dataset: pairs of image (channels, height, width) and label.

        Its samples note on `stopwatch`, if given, how long their stages took; `Stopwatch.noted` is set to those stages,
        `Stopwatch.rest` to the stage that the rest of the time belongs to.
        """


class PixelStorage(Storage, Protocol):
    """Form "pixels": images of one size."""

    shape: tuple[int, int, int]
    """(height, width, channels) of an image."""

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the images at `indices` (b,) int64 as (b, height, width, channels) uint8, in `out` if it is given.

        Without `out` the result may share memory with the storage and must not be written to. Safe to call from
        several threads. Raises a `SampleError` that names the file if one sample cannot be read, `DataError` if the
        storage as a whole cannot.
        """


class EncodedStorage(Storage, Protocol):
    """Form "encoded": images as the bytes of JPEG or PNG files."""

    def read_encoded(self, index: int) -> bytes:
        """Returns the encoded image. Safe to call from several threads. Raises as `PixelStorage.read` does."""

    def name_of(self, index: int) -> str:
        """Returns the file or key of the sample, for messages."""


OPENERS: dict[str, tuple[str, str]] = {
    "idx": ("idx", "IdxStorage"),
    "imagefolder": ("imagefolder", "ImageFolderStorage"),
    "files": ("files", "FilesStorage"),
    "raw-files": ("rawfiles", "RawFilesStorage"),
    "pt": ("pt", "PtStorage"),
    "pt-single": ("pt", "open_mapped"),
    "pt-whole": ("pt", "open_whole"),
    "hdf5": ("hdf5", "ContiguousStorage"),
    "hdf5-chunked": ("hdf5", "ChunkedStorage"),
    "hdf5-encoded": ("hdf5", "EncodedStorage"),
    "lmdb": ("lmdb", "PixelStorage"),
    "lmdb-encoded": ("lmdb", "EncodedStorage"),
    "memmap": ("memmap", "MemmapStorage"),
    "memory": ("memory", "open_uint8"),
    "memory-float": ("memory", "open_float"),
}
"""Storage -> module of this package, and the name in it that opens the storage: called with the data set's facts, the
place, and whether to open the training split. Imported when needed: h5py, lmdb and torchvision are slow to import."""


def open_storage(name: str, info: DatasetInfo, place: Place, *, train: bool, **options: Any) -> Any:
    """Opens one split of the storage called `name`. Returns a `SampleStorage`, `PixelStorage` or `EncodedStorage`.

    `parts.STORAGES[name].form` says which. `options` are the storage's own, such as `augment` for those that have
    transforms. Raises `DataError` if a file is missing or damaged.
    """
    module, opener = OPENERS[name]
    return getattr(importlib.import_module(f"vitprof.engine.storage.{module}"), opener)(info, place, train, **options)
