"""What a storage is: how it is read (`Storage`), where it is (`Location`), and how it is written
(`Format`).
"""

import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.files import made_again, read_error
from vitprof.datasets.files import reading as reading_file
from vitprof.errors import DataError, SampleError, one_line

Pixels = Literal["uint8", "unit", "normalised"]
"""How images are given: uint8 as stored; float32 in 0..1; float32 minus the mean, divided by the
standard deviation."""


Needs = Literal["pixels", "encoded"]
"""What a writer takes."""


class Throttle(Protocol):
    """A limit on reads to the speed of a slower drive.

    Shared by all processes that read; can be pickled.
    """

    def wait(self, n_bytes: int, n_files: int) -> None:
        """Returns when the drive would have delivered `n_bytes` from `n_files` freshly opened
        files.
        """

    def close(self) -> None:
        """Ends all waits, and holds no read back afterwards."""


@dataclass(frozen=True)
class Location:
    """Where a storage's files are, and how fast they can be read."""

    root: Path
    throttle: Throttle | None = None
    """None where reads are not held back."""

    def reading(self, n_bytes: int, n_files: int = 0) -> None:
        """Waits as long as the throttle says.

        Call it for every read, with its bytes and the files opened for it.
        """
        if self.throttle is not None:
            self.throttle.wait(n_bytes, n_files)


class Storage(Protocol):
    """One split of a data set, ready to be read.

    Can be pickled, and opens its files again in each process.
    """

    labels: torch.Tensor
    """(n,) int64, in memory."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def close(self) -> None:
        """Closes what is open in this process."""


class Process:
    """This process: how often it was forked off, and the lock under which it opens files."""

    generation = 0
    opening = threading.Lock()

    @classmethod
    def begin(cls) -> None:
        """Makes storages open their files again, in a child that has just been forked off."""
        cls.generation += 1
        cls.opening.release()


# The lock is held while forking, so that a child never inherits it held by a thread that the child
# does not have.
os.register_at_fork(
    before=Process.opening.acquire,
    after_in_parent=Process.opening.release,
    after_in_child=Process.begin,
)


class StoredSplit:
    """The common part of storages: location, split, shape of images, and what each process that reads
    opens itself.

    A forked child shares its parent's descriptors, and LMDB and HDF5 then return wrong data
    (pytorch issues 11929 and 11887).
    """

    labels: torch.Tensor

    def __init__(self, info: DatasetInfo, location: Location, train: bool) -> None:
        self._location = location
        self._split = "train" if train else "test"
        self.shape = (info.image_size, info.image_size, info.channels)
        self._remedy = made_again(location.root)
        self._opened: Any = None
        self._opened_by = 0

    def _open(self) -> Any:
        """Returns what `read` needs of an open file.

        Called by one thread at a time, once until `close`.
        """

    def _here(self) -> Any:
        """Returns what `_open` returned in this process."""
        if self._opened is None or self._opened_by != Process.generation:
            with Process.opening:
                if self._opened is None or self._opened_by != Process.generation:
                    self._opened = self._open()
                    self._opened_by = Process.generation
        return self._opened

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_opened": None}

    def __len__(self) -> int:
        return len(self.labels)

    def _unusable(self, what: str, error: type[DataError] = DataError) -> DataError:
        """Returns the error to raise for a file or sample that cannot be used: one line that says
        what to do.
        """
        return error(f"{what}; {self._remedy}")

    def _room(self, indices: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Returns `out`, or new memory for the images at `indices`."""
        if out is not None:
            return out
        return torch.empty((len(indices), *self.shape), dtype=torch.uint8)

    def close(self) -> None:
        """Closes what this process has open. May be called again; the next read opens it again."""
        self._opened = None


class PixelStorage(Storage, Protocol):
    """Form "pixels": images of one size."""

    shape: tuple[int, int, int]
    """(height, width, channels) of an image."""

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the images at `indices` (b,) int64 as (b, height, width, channels) uint8, in
        `out` if it is given.

        Without `out` the result may share memory with the storage and must not be written to. Safe
        to call from several threads. Raises a `SampleError` that names the file if one sample
        cannot be read, `DataError` if the storage as a whole cannot.
        """


def read_readable(
    storage: PixelStorage, indices: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Reads what can be read of the samples at `indices` into the first rows of `out`.

    Returns the indices of these samples, and the message of each of the others.
    """
    unreadable: list[str] = []
    try:
        storage.read(indices, out[: len(indices)])
        return indices, ()
    except SampleError:
        good: list[int] = []
        for index in indices.tolist():
            try:
                storage.read(torch.tensor([index]), out[len(good) : len(good) + 1])
                good.append(index)
            except SampleError as error:
                unreadable.append(str(error))
    return torch.tensor(good, dtype=torch.int64), tuple(unreadable)


class EncodedStorage(Storage, Protocol):
    """Form "encoded": images as the bytes of JPEG or PNG files."""

    def read_encoded(self, index: int) -> bytes:
        """Returns the encoded image.

        Safe to call from several threads. Raises as `PixelStorage.read` does.
        """

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


class SplitWriter:
    """A writer of one split into a directory; the training split comes first.

    Every method may raise `OSError`.
    """

    def add(self, start: int, images: Any) -> None:
        """Writes the next samples, from number `start` on: (n, height, width, channels) uint8, or a
        list of bytes.

        In a resumable format, samples of an interrupted try may be added again.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Writes what can only be written once all samples are added.

        May be called again in a resumable format.
        """

    def close(self) -> None:
        """Closes what is open. Called last, also after an error."""


class RowsFile(Protocol):
    """What a module of `vitprof.forms` writes rows of pixels with."""

    def add(self, images: NDArray[np.uint8]) -> None: ...

    def close(self) -> None: ...


class RowsWriter(SplitWriter):
    """A writer of a split's pixels into one file, from the first sample to the last."""

    def __init__(self, file: RowsFile) -> None:
        self._file = file

    def add(self, start: int, images: NDArray[np.uint8]) -> None:
        self._file.add(images)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Format:
    """How a storage is written."""

    version: int
    """Raised with every change to what is written: storages on disk are then made again."""
    needs: Needs
    """What its writer takes, as the method of a `Source` is called that gives it."""
    open_writer: Callable[[Path, SplitFacts], SplitWriter]
    """(directory, facts) -> writer of one split."""
    bytes_a_sample: Callable[[DatasetInfo], float]
    """Approximate room that a sample takes on disk; free space is checked with it before anything
    is written."""
    resumable: bool = False
    """Whether a try continues where the last one was interrupted.

    Formats of many small files do: 70,000 files take 7 to 19 s. Those of one file start over: the
    whole of `digits` takes 0.1 to 0.3 s."""


def image_bytes(info: DatasetInfo) -> int:
    """Returns the size of one image as uint8 pixels, in bytes."""
    return info.image_size**2 * info.channels


FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What modules of `vitprof.forms`, and their libraries, raise for a damaged file."""


def reason_of(error: Exception) -> str:
    """Returns why something cannot be read, in one line."""
    if isinstance(error, OSError):
        return str(error.strerror or error)
    if isinstance(error, ValueError):
        # A module of `vitprof.forms` raises these with words for people.
        return " ".join(str(error).split())
    return one_line(error)


def unusable(path: Path, reason: object) -> DataError:
    """Returns the error to raise for the file at `path`, directly in a storage: one line that says
    what to do.
    """
    return read_error(path, reason, made_again(path.parent))


def reading(path: Path) -> AbstractContextManager[None]:
    """Turns an `OSError` raised inside into the `DataError` for the file at `path`, directly in a
    storage.
    """
    return reading_file(path, made_again(path.parent))


def halved_until_small(n: int, bytes_each: int, most_bytes: int) -> int:
    """Returns `n`, halved until that many of `bytes_each` are at most `most_bytes`; at least 1."""
    while n > 1 and n * bytes_each > most_bytes:
        n //= 2
    return n


LABELS = "labels.npz"
"""Arrays `train_ids`, `train_labels`, `test_ids` and `test_labels`."""
DAMAGED = (
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    AttributeError,
)
"""What NumPy raises for a damaged file of arrays."""


def write_labels(
    directory: Path, splits: Mapping[str, tuple[list[str], NDArray[np.int64]]]
) -> None:
    """Writes IDs and labels (n,) of each split ("train", "test") into `directory`.

    Raises `OSError`.
    """
    arrays: dict[str, NDArray[np.str_] | NDArray[np.int64]] = {}
    for split, (ids, labels) in splits.items():
        arrays |= {
            f"{split}_ids": np.array(ids, dtype=np.str_),
            f"{split}_labels": labels.astype(np.int64),
        }
    np.savez(directory / LABELS, allow_pickle=False, **arrays)


def read_labels(root: Path, *, train: bool) -> torch.Tensor:
    """Returns the labels (n,) int64 of a split of the storage in `root`.

    Raises a `DataError` that names the file.
    """
    return torch.from_numpy(_read(root, train=train)[1])


def read_ids(root: Path, *, train: bool) -> list[str]:
    """Returns the IDs of a split's samples, in the storage's order.

    Raises a `DataError` that names the file.
    """
    ids: list[str] = _read(root, train=train)[0].tolist()
    return ids


def _read(root: Path, *, train: bool) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    path = root / LABELS
    split = "train" if train else "test"
    try:
        with reading(path), np.load(path, allow_pickle=False) as file:
            ids = file[f"{split}_ids"]
            labels = file[f"{split}_labels"]
    except KeyError as error:
        raise unusable(path, f"it holds no {split} split") from error
    except DAMAGED as error:
        raise unusable(path, "it is damaged") from error
    are_labels = labels.dtype == np.int64 and labels.ndim == 1
    if not are_labels or ids.dtype.kind != "U" or ids.shape != labels.shape:
        found = f"{labels.dtype} {labels.shape} labels and {ids.shape} IDs"
        raise unusable(path, f"its {split} split has {found}, not int64 and one each")
    return ids, labels
