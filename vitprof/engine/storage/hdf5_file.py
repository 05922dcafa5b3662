"""The HDF5 file of a data set: writing it with h5py, and opening it with checks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d
from numpy.typing import NDArray

from vitprof.engine.storage.contract import unusable

HDF5_FILE = "data.h5"


class FileBeingWritten:
    """The HDF5 file at `path`, open for writing; created if it does not exist.

    The first write that the system refuses is raised here as an `OSError` and hidden from HDF5. Otherwise HDF5, unable
    to write its own structures, could not close the file either and would end the process with a segmentation fault
    (h5py issue 914; HDF5 2.0.0 on a full disk).
    """

    def __init__(self, path: Path) -> None:
        mode = "r+" if path.exists() else "w"
        self._raw = _NeverFailing(path, "rb+" if mode == "r+" else "wb+")
        # Nothing is compressed, so a chunk cache would only be another copy.
        self._file = h5py.File(self._raw, mode, rdcc_nbytes=0)

    def add_rows(self, name: str, shape: tuple[int, ...], chunk: tuple[int, ...] | None = None) -> Any:
        """Adds a uint8 data set of `shape`, in one piece or in chunks of shape `chunk`. Returns it for `write`."""
        data_set = self._file.create_dataset(name, shape, np.uint8, chunks=chunk)
        self._raw.check()
        return data_set

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Adds a data set with the content `values`."""
        self._file.create_dataset(name, data=values)
        self._raw.check()

    def write(self, data_set: Any, start: int, rows: NDArray[np.uint8]) -> None:
        """Writes `rows` (n, ...) to `data_set`, from row `start` on."""
        data_set[start : start + len(rows)] = rows
        self._raw.check()

    def close(self) -> None:
        """Closes the file. It is complete if no method, including this one, has raised an error."""
        with self._raw:
            self._file.close()
        self._raw.check()


class _NeverFailing(io.FileIO):
    """A file that keeps the first error of a write for `check` and pretends that everything was written."""

    _error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data)
        n_bytes = len(left)
        try:
            while left and self._error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self._error = error
        return n_bytes

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def check(self) -> None:
        """Raises the kept error, if there is one."""
        if self._error is not None:
            raise self._error


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens the h5py file at `path` for reading. What fails in the block becomes a `DataError` that names the file."""
    try:
        with open_file(path) as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise unusable(path, str(error)) from error


def open_file(path: Path) -> Any:
    """Returns the h5py file at `path`, for reading. Raises `DataError`."""
    try:
        # No locks: finished files are only read, and many network drives do not support them. No chunk cache: nothing
        # is compressed, so rows go straight from the file into the batch.
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except FileNotFoundError:
        raise unusable(path, "it is missing") from None
    except OSError as error:
        raise unusable(path, str(error)) from error


def image_set(file: Any, path: Path, name: str, shape: tuple[int, ...], *, chunked: bool) -> Any:
    """Returns the HDF5 data set `name`, checked.

    Raises `DataError` if it is missing, not uint8 of `shape`, of another layout than `chunked` says, or beyond the
    end of the file.
    """
    found = array(file, path, name, np.dtype(np.uint8), shape)
    plain = found.id.get_create_plist()
    layout = {h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked"}.get(plain.get_layout(), "of another layout")
    if plain.get_external_count():
        layout = "in another file"
    if layout != ("chunked" if chunked else "contiguous"):
        raise unusable(path, f"{name} is {layout}, not {'chunked' if chunked else 'contiguous'}")
    if not chunked and found.size:
        offset = found.id.get_offset()
        if offset is None or offset + found.size > path.stat().st_size:
            raise unusable(path, f"{name} reaches beyond the end of the file")
    return found


def array(file: Any, path: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Returns the HDF5 data set `name`. Raises `DataError` unless it exists with that dtype and shape."""
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise unusable(path, f"it holds no data set {name}")
    if found.dtype != dtype or found.shape != shape:
        raise unusable(path, f"{name} is {found.dtype} {found.shape}, not {dtype} {shape}")
    return found


def labels_of(file: Any, path: Path, split: str) -> NDArray[np.int64]:
    """Returns the labels (n,) int64 of a split. Raises `DataError` if they are missing or of another kind."""
    found = file.get(f"Y_{split}")
    if not isinstance(found, h5py.Dataset):
        raise unusable(path, f"it holds no data set Y_{split}")
    if found.ndim != 1 or found.dtype != np.int64:
        raise unusable(path, f"Y_{split} is {found.dtype} {found.shape}, not int64 with one axis")
    labels: NDArray[np.int64] = found[:]
    return labels
