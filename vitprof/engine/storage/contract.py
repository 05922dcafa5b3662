"""What a storage is: how it is read (`Storage`), where it is (`Place`), and how it is written (`Format`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from vitprof.config.catalog import DatasetInfo
from vitprof.errors import DataError
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


class StoredSplit:
    """The common part of storages: their place, split and shape of images. No file stays open between reads."""

    labels: Tensor

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        self._place = place
        self._split = "train" if train else "test"
        self.shape = (info.image_size, info.image_size, info.channels)
        self._remedy = f"delete {place.root} and it is made again"

    def __len__(self) -> int:
        return len(self.labels)

    def _room(self, indices: Tensor, out: Tensor | None) -> Tensor:
        """Returns `out`, or new memory for the images at `indices`."""
        return torch.empty((len(indices), *self.shape), dtype=torch.uint8) if out is None else out

    def close(self) -> None:
        """Does nothing where no file stays open."""


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


@dataclass(frozen=True)
class SplitFacts:
    """Facts about the split that a writer writes."""

    name: str
    """"train" or "test"."""
    n: int
    shape: tuple[int, int, int]
    """(height, width, channels) of an image, where pixels are written."""
    ids: list[str]
    labels: NDArray[np.int64]
    """(n,)"""


@dataclass(frozen=True)
class Chunk:
    """Some samples of a split, in order. One of `pixels` and `encoded` is set: the one that `Format.needs` names."""

    ids: list[str]
    pixels: NDArray[np.uint8] | None
    """(n, height, width, channels)"""
    encoded: list[bytes] | None


class SplitWriter:
    """A writer of one split into a directory; the training split comes first. Every method may raise `OSError`."""

    def add(self, start: int, chunk: Chunk) -> None:
        """Writes a chunk whose first sample is number `start`. Chunks are added in order.

        In a resumable format, chunks of an interrupted try may be added again.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Writes what can only be written once all samples are added. May be called again in a resumable format."""

    def close(self) -> None:
        """Closes what is open. Called last, also after an error."""


@dataclass(frozen=True)
class Format:
    """How a storage is written."""

    version: int
    """Raised with every change to what is written: storages on disk are then made again."""
    needs: Literal["pixels", "encoded"]
    """The field of a `Chunk` that its writer takes."""
    open_writer: Callable[[Path, SplitFacts], SplitWriter]
    """(directory, facts) -> writer of one split."""
    bytes_a_sample: Callable[[DatasetInfo], float]
    """Approximate room that a sample takes on disk; free space is checked with it before anything is written."""
    resumable: bool = False
    """Whether a try continues where the last one was interrupted. Formats of many small files do: 70,000 files take 7
    to 19 s. Those of one file start over: the whole of `digits` takes 0.1 to 0.3 s."""


def image_bytes(info: DatasetInfo) -> int:
    """Returns the size of one image as uint8 pixels, in bytes."""
    return info.image_size**2 * info.channels


def unusable(path: Path, reason: str) -> DataError:
    """Returns the error to raise for the file at `path`, directly in a storage: one line that says what to do."""
    reason = " ".join(reason.split())
    return DataError(f"{path} cannot be read ({reason}); delete {path.parent} and it is made again")
