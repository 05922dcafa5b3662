"""All images in one HDF5 file: data sets X_train, Y_train, X_test, Y_test.

X is (n, height, width, channels) uint8, in one piece or in chunks of rows; Y is (n,) int64.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from h5py import h5s, h5t
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage.contract import (
    Chunk,
    Format,
    Place,
    SplitFacts,
    SplitWriter,
    StoredSplit,
    image_bytes,
    unusable,
)
from vitprof.engine.storage.hdf5_file import HDF5_FILE, FileBeingWritten, array, image_set, labels_of, open_file, opened
from vitprof.engine.storage.labels import read_ids
from vitprof.errors import SampleError

CHUNK_ROWS = 256
CHUNK_BYTES = 1 << 20
"""Chunks are as large as both limits allow. A batch is read in runs of a chunk's rows; each run costs about 6 us."""


def chunk_rows(row_bytes: int) -> int:
    """Returns the number of rows in a chunk, a power of two, for rows of `row_bytes`."""
    rows = CHUNK_ROWS
    while rows > 1 and rows * row_bytes > CHUNK_BYTES:
        rows //= 2
    return rows


class Writer(SplitWriter):
    """A writer of the images of a split, chunk after chunk."""

    def __init__(self, directory: Path, split: SplitFacts, *, chunked: bool) -> None:
        rows = min(chunk_rows(math.prod(split.shape)), split.n)
        self._file = FileBeingWritten(directory / HDF5_FILE)
        try:
            self._file.add(f"Y_{split.name}", split.labels)
            chunk = (rows, *split.shape) if chunked else None
            self._images = self._file.add_rows(f"X_{split.name}", (split.n, *split.shape), chunk)
        except BaseException:
            self._file.close()
            raise

    def add(self, start: int, chunk: Chunk) -> None:
        assert chunk.pixels is not None
        self._file.write(self._images, start, chunk.pixels)

    def close(self) -> None:
        self._file.close()


CONTIGUOUS_FORMAT = Format(1, "pixels", functools.partial(Writer, chunked=False), image_bytes)
CHUNKED_FORMAT = Format(1, "pixels", functools.partial(Writer, chunked=True), image_bytes)


class _Storage(StoredSplit):
    """The common part of both layouts: the file, checked when the storage is opened, and its labels."""

    _chunked: bool

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._path = place.root / HDF5_FILE
        with opened(self._path) as file:
            self.labels = torch.from_numpy(labels_of(file, self._path, self._split))
            self._look(self._images_of(file))

    def _images_of(self, file: Any) -> Any:
        shape = (len(self.labels), *self.shape)
        return image_set(file, self._path, f"X_{self._split}", shape, chunked=self._chunked)

    def _look(self, images: Any) -> None:
        """Notes facts about the HDF5 data set that `read` needs."""


class ContiguousStorage(_Storage):
    """Images in one piece of the file, mapped into memory: one gather of rows for each batch.

    h5py checks the file and says where that piece is. Reading through h5py itself, with sorted indices, was measured
    to take about 1.6 times as long, and its handles must not reach a forked process.
    """

    _chunked = False

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        self._images: NDArray[np.uint8] | None = None
        super().__init__(info, place, train)

    def _rows(self) -> NDArray[np.uint8]:
        if self._images is None:
            with opened(self._path) as file:
                offset = self._images_of(file).id.get_offset()
                shape = (len(self.labels), *self.shape)
                # A plain array, since every gather would go through a memmap's own methods.
                self._images = np.asarray(np.memmap(self._path, np.uint8, "r", offset, shape))
        return self._images

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        rows = self._rows()
        out = self._room(indices, out)
        self._place.reading(out.nbytes)
        # mode="raise" would gather into a buffer of NumPy's own first (numpy.take's documentation)
        np.take(rows, indices.numpy(), axis=0, out=out.numpy(), mode="clip")
        return out

    def close(self) -> None:
        self._images = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_images": None}


class ChunkedStorage(_Storage):
    """Images in chunks of rows. Each run of consecutive rows is read straight into the batch with one call of HDF5."""

    _chunked = True
    block: int
    """Rows of a chunk: indices in runs of this many are read fast, in any order of the runs."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        self._handles: dict[int, tuple[Any, Any]] = {}
        super().__init__(info, place, train)

    def _look(self, images: Any) -> None:
        self.block = int(images.chunks[0])

    def _opened(self) -> Any:
        """Returns the HDF5 data set, opened by this process.

        A forked child would share the parent's descriptor, and h5py then returns wrong data (pytorch issues 11929 and
        11887).
        """
        process = os.getpid()
        if (handle := self._handles.get(process)) is None:
            for other in {*self._handles} - {process}:  # handles inherited by a fork
                self._close(other)
            file = open_file(self._path)
            try:
                mine = (file, self._images_of(file))  # HDF5 closes the data set with its file
            except BaseException:
                file.close()
                raise
            handle = self._handles.setdefault(process, mine)  # another thread may have been faster
            if handle is not mine:
                file.close()
        return handle[1]

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        out = self._room(indices, out)
        if not len(indices):
            return out
        self._place.reading(out.nbytes)
        wanted, rows = indices.numpy(), out.numpy()
        starts = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
        images = self._opened()
        try:
            # h5py's low-level calls, since read_direct takes about 70 us for a run, of which only 6 us are HDF5's.
            source, target = images.id.get_space(), h5s.create_simple(rows.shape)
            for start, stop, first in zip(
                starts.tolist(), [*starts[1:].tolist(), len(wanted)], wanted[starts].tolist(), strict=True
            ):
                block = (stop - start, *self.shape)
                source.select_hyperslab((first, 0, 0, 0), block)
                target.select_hyperslab((start, 0, 0, 0), block)
                images.id.read(target, source, rows, h5t.NATIVE_UINT8)
        except (OSError, RuntimeError) as error:
            raise unusable(self._path, str(error)) from error
        return out

    def _close(self, process: int) -> None:
        if (handle := self._handles.pop(process, None)) is not None:
            handle[0].close()

    def close(self) -> None:
        for process in {*self._handles}:
            self._close(process)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_handles": {}}


COPY_BYTES = 8 << 20


class EncodedWriter(SplitWriter):
    """A writer that first collects a split's bytes in a separate file: their total length is known only at the end."""

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        self._path = directory / HDF5_FILE
        self._split = split
        self._collected = (directory / f"{split.name}.bytes").open("w+b")
        self._lengths: list[int] = []

    def add(self, start: int, chunk: Chunk) -> None:
        assert chunk.encoded is not None
        self._collected.writelines(chunk.encoded)
        self._lengths += map(len, chunk.encoded)

    def finish(self) -> None:
        name, offsets = self._split.name, np.cumsum([0, *self._lengths], dtype=np.int64)
        self._collected.seek(0)
        with contextlib.closing(FileBeingWritten(self._path)) as file:
            file.add(f"Y_{name}", self._split.labels)
            file.add(f"offsets_{name}", offsets)
            joined = file.add_rows(f"X_{name}", (int(offsets[-1]),))
            for start in range(0, int(offsets[-1]), COPY_BYTES):
                file.write(joined, start, np.frombuffer(self._collected.read(COPY_BYTES), np.uint8))
        Path(self._collected.name).unlink()

    def close(self) -> None:
        self._collected.close()


# Twice the 0.1 MB of an average photo: while a split is being finished its bytes are on disk twice.
ENCODED_FORMAT = Format(1, "encoded", EncodedWriter, lambda info: 220_000)


class EncodedStorage(StoredSplit):
    """Encoded images, each read with one `pread` at the position that h5py and the offsets give."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._path = place.root / HDF5_FILE
        self._files: dict[str, int] = {}
        with opened(self._path) as file:
            self.labels = torch.from_numpy(labels_of(file, self._path, self._split))
            n = len(self.labels)
            name = f"offsets_{self._split}"
            offsets: NDArray[np.int64] = array(file, self._path, name, np.dtype(np.int64), (n + 1,))[:]
            if offsets[0] != 0 or (np.diff(offsets) < 0).any():
                raise unusable(self._path, f"{name} does not rise from 0")
            images = image_set(file, self._path, f"X_{self._split}", (int(offsets[-1]),), chunked=False)
            self._positions = offsets + (images.id.get_offset() or 0)

    def read_encoded(self, index: int) -> bytes:
        file = self._files["data"] if "data" in self._files else self._open()
        begin, end = self._positions[index : index + 2].tolist()
        if begin == end:
            raise SampleError(f"{self.name_of(index)} is empty; {self._remedy}")
        self._place.reading(end - begin)
        try:
            data = os.pread(file, end - begin, begin)
        except OSError as error:
            raise SampleError(
                f"{self.name_of(index)} cannot be read ({error.strerror or error}); {self._remedy}"
            ) from error
        if len(data) != end - begin:
            raise unusable(self._path, "it became shorter while it was read")
        return data

    def _open(self) -> int:
        """Returns the file's descriptor. A forked child may share it: pread takes the position with each call."""
        try:
            mine = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unusable(self._path, error.strerror or str(error)) from error
        kept = self._files.setdefault("data", mine)  # another thread may have been faster
        if kept != mine:
            os.close(mine)
        return kept

    def name_of(self, index: int) -> str:
        return f"{self._path}: {read_ids(self._place.root, train=self._split == 'train')[index]}"

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_files": {}}
