"""All images in one HDF5 file: data sets X_train, Y_train, X_test, Y_test.

X is (n, height, width, channels) uint8, in one piece or in chunks of rows; Y is (n,) int64.
"""

import contextlib
import functools
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from h5py import h5d, h5s, h5t
from numpy.typing import NDArray

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage import contract
from vitprof.errors import SampleError

HDF5_FILE = "data.h5"


class FileBeingWritten:
    """The HDF5 file at `path`, open for writing; created if it does not exist.

    The first write that the system refuses is raised here as an `OSError` and hidden from HDF5.
    Otherwise HDF5, unable to write its own structures, could not close the file either and would
    end the process with a segmentation fault (h5py issue 914; HDF5 2.0.0 on a full disk).
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            mode = "r+"
            self._raw = _NeverFailing(path, "rb+")
        else:
            mode = "w"
            self._raw = _NeverFailing(path, "wb+")
        # Nothing is compressed, so a chunk cache would only be another copy.
        self._file = h5py.File(self._raw, mode, rdcc_nbytes=0)

    def add(self, name: str, **options: Any) -> Any:
        """Adds a data set with h5py's options, such as `data`. Returns it for `write`."""
        data_set = self._file.create_dataset(name, **options)
        self._raw.check()
        return data_set

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
    """A file that keeps the first error of a write for `check` and pretends that everything was
    written.
    """

    _error: OSError | None = None

    def write(self, data: Any) -> int:
        remaining = memoryview(data)
        n_bytes = len(remaining)
        try:
            while remaining and self._error is None:
                remaining = remaining[super().write(remaining) :]
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


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens the h5py file at `path` for reading.

    What fails in the block becomes a `DataError` that names the file.
    """
    try:
        with open_file(path) as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise contract.unusable(path, str(error)) from error


def open_file(path: Path) -> Any:
    """Returns the h5py file at `path`, for reading. Raises `DataError`."""
    with contract.reading(path):
        # No locks: finished files are only read, and many network drives do not support them. No
        # chunk cache: nothing is compressed, so rows go straight from the file into the batch.
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0)


def image_set(file: Any, path: Path, name: str, shape: tuple[int, ...], *, chunked: bool) -> Any:
    """Returns the HDF5 data set `name`, checked.

    Raises `DataError` if it is missing, not uint8 of `shape`, of another layout than `chunked`
    says, or beyond the end of the file.
    """
    found = array(file, path, name, "uint8", shape)
    plain = found.id.get_create_plist()
    layouts = {h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked"}
    layout = layouts.get(plain.get_layout(), "of another layout")
    if plain.get_external_count():
        layout = "in another file"
    wanted = "chunked" if chunked else "contiguous"
    if layout != wanted:
        raise contract.unusable(path, f"{name} is {layout}, not {wanted}")
    if not chunked and found.size:
        offset = found.id.get_offset()
        if offset is None or offset + found.size > path.stat().st_size:
            raise contract.unusable(path, f"{name} reaches beyond the end of the file")
    return found


def array(
    file: Any, path: Path, name: str, dtype: str, shape: tuple[int, ...] | None = None
) -> Any:
    """Returns the HDF5 data set `name`.

    Raises `DataError` unless it has that dtype and shape (None: any one axis).
    """
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise contract.unusable(path, f"it holds no data set {name}")
    fits = found.ndim == 1
    if shape is not None:
        fits = found.shape == shape
    if found.dtype != dtype or not fits:
        wanted = f"{dtype} {shape or 'with one axis'}"
        raise contract.unusable(path, f"{name} is {found.dtype} {found.shape}, not {wanted}")
    return found


# Chunks are as large as both limits allow. A batch is read in runs of a chunk's rows; each run
# costs about 6 us.
CHUNK_ROWS = 256
CHUNK_BYTES = 1 << 20


class Writer(contract.SplitWriter):
    """A writer of a split: allocates its data sets, then writes images to their places, chunk after
    chunk.
    """

    def __init__(self, directory: Path, split: contract.SplitFacts, *, chunked: bool) -> None:
        rows = contract.halved_until_small(CHUNK_ROWS, math.prod(split.shape), CHUNK_BYTES)
        self._file = FileBeingWritten(directory / HDF5_FILE)
        try:
            self._file.add(f"Y_{split.name}", data=split.labels)
            chunks = None
            if chunked:
                chunks = (min(rows, split.n), *split.shape)
            shape = (split.n, *split.shape)
            self._images = self._file.add(
                f"X_{split.name}", shape=shape, dtype=np.uint8, chunks=chunks
            )
        except BaseException:
            self._file.close()
            raise

    def add(self, start: int, images: NDArray[np.uint8]) -> None:
        self._file.write(self._images, start, images)

    def close(self) -> None:
        self._file.close()


CONTIGUOUS_FORMAT = contract.Format(
    1, "pixels", functools.partial(Writer, chunked=False), contract.image_bytes
)
CHUNKED_FORMAT = contract.Format(
    1, "pixels", functools.partial(Writer, chunked=True), contract.image_bytes
)


class _Storage(contract.StoredSplit):
    """The common part of both layouts: the file, checked when the storage is opened, and its
    labels.
    """

    _chunked: bool

    def __init__(self, info: DatasetInfo, place: contract.Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._path = place.root / HDF5_FILE
        with opened(self._path) as file:
            self.labels = torch.from_numpy(array(file, self._path, f"Y_{self._split}", "int64")[:])
            images = self._images_of(file)
            if self._chunked:
                self.block = int(images.chunks[0])
                """Rows of a chunk: indices in runs of this many are read fast, in any order of the
                runs."""

    def _images_of(self, file: Any) -> Any:
        shape = (len(self.labels), *self.shape)
        return image_set(file, self._path, f"X_{self._split}", shape, chunked=self._chunked)


class ContiguousStorage(_Storage):
    """A gather of rows for each batch, from the place in the file where HDF5 keeps the data set in
    one piece.

    h5py says where that is, after all checks. Through h5py itself, sorted, a batch takes about 1.6
    times as long, and a handle of it must not reach a forked process.
    """

    _chunked = False

    def _open(self) -> NDArray[np.uint8]:
        with opened(self._path) as file:
            images = self._images_of(file)
            offset = images.id.get_offset()
            # A plain array, since every gather would go through a memmap's own methods.
            return np.asarray(np.memmap(self._path, np.uint8, "r", offset, images.shape))

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        rows = self._here()
        out = self._room(indices, out)
        self._place.reading(out.nbytes)
        # mode="raise" would gather into a buffer of NumPy's own first (numpy.take's documentation).
        np.take(rows, indices.numpy(), axis=0, out=out.numpy(), mode="clip")
        return out


class ChunkedStorage(_Storage):
    """Images in chunks of rows.

    Each run of consecutive rows is read straight into the batch with one call of HDF5.
    """

    _chunked = True

    def _open(self) -> tuple[Any, Any]:
        # What a fork inherited.
        self.close()
        file = open_file(self._path)
        try:
            # HDF5 closes the data set with its file.
            return file, self._images_of(file)
        except BaseException:
            file.close()
            raise

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = self._room(indices, out)
        if not len(indices):
            return out
        self._place.reading(out.nbytes)
        wanted = indices.numpy()
        rows = out.numpy()
        # A run begins where a row is not the one behind the row before.
        begins = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
        starts = begins.tolist()
        stops = [*starts[1:], len(wanted)]
        firsts = wanted[begins].tolist()
        _, images = self._here()
        try:
            # h5py's low-level calls, since read_direct takes about 70 us for a run, of which only 6
            # us are HDF5's.
            source = images.id.get_space()
            target = h5s.create_simple(rows.shape)
            for start, stop, first in zip(starts, stops, firsts, strict=True):
                block = (stop - start, *self.shape)
                source.select_hyperslab((first, 0, 0, 0), block)
                target.select_hyperslab((start, 0, 0, 0), block)
                images.id.read(target, source, rows, h5t.NATIVE_UINT8)
        except (OSError, RuntimeError) as error:
            raise contract.unusable(self._path, str(error)) from error
        return out

    def close(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
        super().close()


COPY_BYTES = 8 << 20
"""Bytes that are copied at once."""


class EncodedWriter(contract.SplitWriter):
    """A writer that first collects a split's bytes in a separate file: their total length is known
    only at the end.
    """

    def __init__(self, directory: Path, split: contract.SplitFacts) -> None:
        self._path = directory / HDF5_FILE
        self._split = split
        self._collected = (directory / f"{split.name}.bytes").open("w+b")
        self._lengths: list[int] = []

    def add(self, start: int, images: list[bytes]) -> None:
        self._collected.writelines(images)
        self._lengths += map(len, images)

    def finish(self) -> None:
        name = self._split.name
        offsets = np.cumsum([0, *self._lengths], dtype=np.int64)
        self._collected.seek(0)
        with contextlib.closing(FileBeingWritten(self._path)) as file:
            file.add(f"Y_{name}", data=self._split.labels)
            file.add(f"offsets_{name}", data=offsets)
            joined = file.add(f"X_{name}", shape=(int(offsets[-1]),), dtype=np.uint8)
            for start in range(0, int(offsets[-1]), COPY_BYTES):
                file.write(joined, start, np.frombuffer(self._collected.read(COPY_BYTES), np.uint8))
        Path(self._collected.name).unlink()

    def close(self) -> None:
        self._collected.close()


# Twice the 0.1 MB of an average photo: while a split is being finished its bytes are on disk twice.
ENCODED_FORMAT = contract.Format(1, "encoded", EncodedWriter, lambda info: 220_000)


class EncodedStorage(contract.StoredSplit):
    """Encoded images, each read with one `pread` at the position that h5py and the offsets give."""

    def __init__(self, info: DatasetInfo, place: contract.Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._path = place.root / HDF5_FILE
        with opened(self._path) as file:
            self.labels = torch.from_numpy(array(file, self._path, f"Y_{self._split}", "int64")[:])
            name = f"offsets_{self._split}"
            offsets: NDArray[np.int64] = array(
                file, self._path, name, "int64", (len(self.labels) + 1,)
            )[:]
            if offsets[0] != 0 or (np.diff(offsets) < 0).any():
                raise contract.unusable(self._path, f"{name} does not rise from 0")
            images = image_set(
                file, self._path, f"X_{self._split}", (int(offsets[-1]),), chunked=False
            )
            self._positions = offsets + (images.id.get_offset() or 0)

    def read_encoded(self, index: int) -> bytes:
        file = self._here().fileno()
        begin, end = self._positions[index : index + 2].tolist()
        if begin == end:
            raise self._unusable(f"{self.name_of(index)} is empty", SampleError)
        self._place.reading(end - begin)
        try:
            data = os.pread(file, end - begin, begin)
        except OSError as error:
            what = f"{self.name_of(index)} cannot be read ({error.strerror or error})"
            raise self._unusable(what, SampleError) from error
        if len(data) != end - begin:
            raise contract.unusable(self._path, "it became shorter while it was read")
        return data

    def _open(self) -> io.FileIO:
        """Returns the open file.

        A forked child may share it: pread takes the position with each call.
        """
        with contract.reading(self._path):
            return io.FileIO(self._path)

    def name_of(self, index: int) -> str:
        ids = contract.read_ids(self._place.root, train=self._split == "train")
        return f"{self._path}: {ids[index]}"

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        super().close()
