"""Storages: how samples are kept and read. One file each, found by the names of `vitprof.config.parts.STORAGES`.

A storage gives one of three things (its form): finished samples one by one through a torch Dataset, uint8 pixels in
whole batches, or encoded images. What makes batches of them stands in `loaders`; where their files lie and how
fast those can be read is a `Place` (`vitprof.engine.locations`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor
from torch.utils.data import Dataset

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.stopwatch import Stopwatch

Pixels = Literal["uint8", "unit", "normalised"]
"""uint8 as stored; float32 scaled to 0..1; float32 with mean subtracted and divided by the standard deviation."""


class Throttle(Protocol):
    """Holds reads back to the speed of a slower drive. Shared by all processes that read; can be pickled."""

    def wait(self, n_bytes: int, n_files: int) -> None:
        """Returns when the drive would have delivered `n_bytes` from `n_files` freshly opened files."""

    def close(self) -> None:
        """Lets everybody go who waits, and holds nobody back afterwards."""


@dataclass(frozen=True)
class Place:
    """Where a storage's files lie."""

    root: Path
    throttle: Throttle | None = None

    def reading(self, n_bytes: int, n_files: int = 0) -> None:
        """To be called for every read: `n_bytes`, and how many files were opened for them."""
        if self.throttle is not None:
            self.throttle.wait(n_bytes, n_files)


class Storage(Protocol):
    """One split of a data set, ready to be read; can be pickled and opens its files anew in each process."""

    labels: Tensor
    """(n,) int64, in memory."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def close(self) -> None:
        """Closes what is open in this process."""


class SampleStorage(Storage, Protocol):
    """Form "samples": a Dataset as tutorials write it."""

    pixels: Pixels
    """What the images of the dataset are."""

    def dataset(self, stopwatch: Stopwatch | None = None) -> Dataset[tuple[Tensor, int | Tensor]]:
        """Returns the samples one by one, images (channels, height, width).

        Where `stopwatch` is given they note there how long their parts took, and it is told which parts those are
        (`Stopwatch.noted`) and what the rest of the time is (`Stopwatch.rest`).
        """


class PixelStorage(Storage, Protocol):
    """Form "pixels": images of one size."""

    shape: tuple[int, int, int]
    """(height, width, channels) of an image."""

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the images at `indices` (b,) int64 as (b, height, width, channels) uint8, into `out` if it is given.

        Without `out` the result may share memory with the storage and must not be written to. Safe to call from
        several threads. Raises `SampleError` that names the file of a sample that cannot be read, `DataError` where
        the storage as a whole cannot.
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
"""Module of this package and what in it opens the storage: called with the data set's facts, the place, train or not.
Imported when asked for: h5py, lmdb and torchvision take their time."""


def open_storage(name: str, info: DatasetInfo, place: Place, *, train: bool, **options: Any) -> Any:
    """Opens one split in the storage called `name`: a `SampleStorage`, `PixelStorage` or `EncodedStorage`.

    Which of them `parts.STORAGES[name].form` says. `options` are the storage's own: `augment` of those that
    have transforms. Raises `DataError`.
    """
    module, opener = OPENERS[name]
    return getattr(importlib.import_module(f"vitprof.engine.storage.{module}"), opener)(info, place, train, **options)
