"""Samples in HDF5: a dataset of bytes for each of their values, or of pixels, in one piece or in
chunks of rows.
"""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5s, h5t
from numpy.typing import NDArray

from vitprof.forms.contract import Found, Names, Refuse
from vitprof.forms.gate import Gate
from vitprof.forms.joined import JoinedFile, add_to_each

FILE = "samples.h5"
COPY_BYTES = 8 << 20
"""Bytes that are copied at once."""
ROOM = 2.2
"""Room that writing takes over the bytes of samples: at the end they are on disk twice."""


class FileBeingWritten:
    """The HDF5 file at `path`, open for writing; created if it does not exist.

    The first write that the system refuses is raised here as an `OSError` and hidden from HDF5.
    Otherwise HDF5, unable to write its own structures, could not close the file either and would
    end the process with a segmentation fault (h5py issue 914; HDF5 2.0.0 on a full disk).
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            mode = "r+"
            self._raw = NeverFailing(path, "rb+")
        else:
            mode = "w"
            self._raw = NeverFailing(path, "wb+")
        # Nothing is compressed, so a chunk cache would only be another copy.
        self._file = h5py.File(self._raw, mode, rdcc_nbytes=0)

    def add(self, name: str, **options: Any) -> Any:
        """Adds a dataset with h5py's options, such as `data`. Returns it for `write`."""
        dataset = self._file.create_dataset(name, **options)
        self._raw.check()
        return dataset

    def write(self, dataset: Any, start: int, rows: NDArray[np.uint8]) -> None:
        """Writes `rows` (n, ...) to `dataset`, from row `start` on."""
        dataset[start : start + len(rows)] = rows
        self._raw.check()

    def close(self) -> None:
        """Closes the file. It is complete if no method, including this one, has raised an error."""
        with self._raw:
            self._file.close()
        self._raw.check()


class NeverFailing(io.FileIO):
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


def open_file(path: Path) -> Any:
    """Returns the h5py file at `path`, for reading. Raises `OSError`."""
    # No locks: finished files are only read, and many network drives do not support them. No chunk
    # cache: nothing is compressed, so rows go straight from the file into the batch.
    return h5py.File(path, "r", locking=False, rdcc_nbytes=0)


def dataset_in(file: Any, name: str, dtype: str) -> Any:
    """Returns the dataset `name`. Raises `ValueError` where there is none of that type."""
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise ValueError(f"it holds no dataset {name}")
    if found.file.filename != file.filename or found.external or found.is_virtual:
        raise ValueError(f"{name} is in another file, which is not followed")
    if found.dtype != dtype or not found.ndim:
        raise ValueError(f"{name} is {found.dtype} {found.shape}, not {dtype}")
    return found


def layout_of(dataset: Any) -> str:
    """Returns "contiguous" or "chunked", else words that say how a dataset is stored."""
    plain = dataset.id.get_create_plist()
    if plain.get_external_count():
        return "in another file"
    layouts = {h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked"}
    return layouts.get(plain.get_layout(), "of another layout")


def place_of(path: Path, file: Any, name: str) -> tuple[int, tuple[int, ...]]:
    """Returns where a dataset of bytes that is in one piece begins in the file, and its shape.

    Raises `ValueError` for another one.
    """
    found = dataset_in(file, name, "uint8")
    if layout_of(found) != "contiguous":
        raise ValueError(f"{name} is {layout_of(found)}, not contiguous")
    offset = found.id.get_offset()
    if found.size and (offset is None or offset + found.size > path.stat().st_size):
        raise ValueError(f"{name} reaches beyond the end of the file")
    return offset or 0, found.shape


# Samples as bytes, of any length.


class Writer:
    """Writes a dataset for each value, and one of where each sample ends in it.

    The bytes are collected in a file of their own first: their total length is known only at the
    end.
    """

    def __init__(self, folder: Path, names: Names) -> None:
        self._path = folder / FILE
        self._names = names
        self._collected = [JoinedFile(folder / name) for name in names]

    def add(self, values: Sequence[bytes]) -> None:
        add_to_each(self._collected, values)

    def finish(self) -> None:
        self.close()
        file = FileBeingWritten(self._path)
        try:
            for name, collected in zip(self._names, self._collected, strict=True):
                file.add(f"ends of {name}", data=np.array(collected.ends, np.int64))
                joined = file.add(name, shape=(collected.ends[-1],), dtype=np.uint8)
                with collected.path.open("rb") as source:
                    for start in range(0, collected.ends[-1], COPY_BYTES):
                        block = np.frombuffer(source.read(COPY_BYTES), np.uint8)
                        file.write(joined, start, block)
                collected.path.unlink()
        finally:
            file.close()

    def close(self) -> None:
        for collected in self._collected:
            collected.close()


class Reader:
    """Reads each value with one `pread`, at the place that HDF5 and the ends give.

    Unlike an h5py file, a descriptor may be shared with a forked process: pread takes the position
    with each call.
    """

    def __init__(self, folder: Path, names: Names) -> None:
        path = folder / FILE
        self._ends: list[NDArray[np.int64]] = []
        """For each value, where samples end in the file; the first begins at the first."""
        with open_file(path) as file:
            for name in names:
                ends = dataset_in(file, f"ends of {name}", "int64")[:]
                offset, shape = place_of(path, file, name)
                rises = ends[0] == 0 and not (np.diff(ends) < 0).any()
                if not rises or shape != (int(ends[-1]),):
                    raise ValueError(f"the ends of {name} do not rise from 0 to its length")
                self._ends.append(ends + offset)
        self._file = io.FileIO(path)

    def __len__(self) -> int:
        return len(self._ends[0]) - 1

    def read(self, number: int) -> Sequence[Any]:
        return [self._pread(*ends[number : number + 2].tolist()) for ends in self._ends]

    def _pread(self, begin: int, end: int) -> bytes:
        data = os.pread(self._file.fileno(), end - begin, begin)
        if len(data) != end - begin:
            raise ValueError("its file became shorter while it was read")
        return data

    def close(self) -> None:
        self._file.close()


# Pixels, as rows of one shape.

CHUNK_ROWS = 256
"""The most rows in a chunk. A batch is read in runs of a chunk's rows; each run costs about 6 us."""
CHUNK_BYTES = 1 << 20
"""The most bytes in a chunk, if that is at least a row."""


def rows_of_a_chunk(sample_bytes: int) -> int:
    """Returns how many samples of that size are in a chunk: as many as both limits allow."""
    rows = CHUNK_ROWS
    while rows > 1 and rows * sample_bytes > CHUNK_BYTES:
        rows //= 2
    return rows


class RowsWriter:
    """Writes pixels to a dataset: allocates it, then writes images to their places."""

    def __init__(
        self,
        path: Path,
        name: str,
        shape: tuple[int, ...],
        *,
        chunked: bool = False,
        more: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """`shape`: that of all images, (n, height, width, channels); `more`: other datasets."""
        self._file = FileBeingWritten(path)
        self._n = 0
        chunks = None
        if chunked:
            sample_bytes = int(np.prod(shape[1:]))
            chunks = (min(rows_of_a_chunk(sample_bytes), shape[0]), *shape[1:])
        try:
            for other, values in (more or {}).items():
                self._file.add(other, data=values)
            self._images = self._file.add(name, shape=shape, dtype=np.uint8, chunks=chunks)
        except BaseException:
            self._file.close()
            raise

    def add(self, images: NDArray[np.uint8]) -> None:
        """Writes the next images."""
        self._file.write(self._images, self._n, images)
        self._n += len(images)

    def close(self) -> None:
        self._file.close()


def map_rows(path: Path, name: str) -> NDArray[np.uint8]:
    """Returns a dataset in one piece, mapped into memory from the place where HDF5 keeps it.

    Through h5py itself, sorted, a batch takes about 1.6 times as long, and a handle of it must not
    reach a forked process: it would return wrong data. Raises `OSError` and `ValueError`.
    """
    with open_file(path) as file:
        offset, shape = place_of(path, file, name)
    # "c" (private), since torch warns about arrays that cannot be written to; nothing is ever
    # written.
    return np.memmap(path, np.uint8, "c", offset, shape)


class ChunkedRows:
    """Pixels in chunks of rows.

    Each run of consecutive rows is read straight into the batch with one call of HDF5.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Raises `OSError` and `ValueError`."""
        self._file = open_file(path)
        try:
            # HDF5 closes the dataset with its file.
            self._rows = dataset_in(self._file, name, "uint8")
            if layout_of(self._rows) != "chunked":
                raise ValueError(f"{name} is {layout_of(self._rows)}, not chunked")
        except BaseException:
            self._file.close()
            raise
        self.shape: tuple[int, ...] = self._rows.shape
        self.block = int(self._rows.chunks[0])
        """Rows of a chunk: indices in runs of this many are read fast, in any order of the runs."""

    def read(self, wanted: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        """Reads the images at `wanted` (b,) into `rows` (b, height, width, channels).

        Raises `OSError` and `RuntimeError`.
        """
        # A run begins where a row is not the one behind the row before.
        begins = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
        starts = begins.tolist()
        stops = [*starts[1:], len(wanted)]
        firsts = wanted[begins].tolist()
        images = self._rows.id
        # h5py's low-level calls, since read_direct takes about 70 us for a run, of which only 6 us
        # are HDF5's.
        source = images.get_space()
        target = h5s.create_simple(rows.shape)
        for start, stop, first in zip(starts, stops, firsts, strict=True):
            block = (stop - start, *rows.shape[1:])
            source.select_hyperslab((first, 0, 0, 0), block)
            target.select_hyperslab((start, 0, 0, 0), block)
            images.read(target, source, rows, h5t.NATIVE_UINT8)

    def close(self) -> None:
        self._file.close()


def find(path: str, options: Mapping[str, str], refuse: Refuse, gate: Gate) -> Found:
    """Returns the samples of a user's own file. What it names in other files is refused."""
    # Imported here: a script that stores samples needs none of it.
    from vitprof.forms.hdf5.own import found_in

    return found_in(path, options, refuse)
