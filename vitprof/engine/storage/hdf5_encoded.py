"""JPEG files one after another in one HDF5 data set.

X_train is the bytes of all files of the training split as one row of uint8, offsets_train (n + 1) int64 says where
each begins and the last one ends, Y_train (n,) int64 are the labels; the same for "test".
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage import Place
from vitprof.engine.storage.format import Chunk, Format, SplitFacts
from vitprof.engine.storage.hdf5_file import (
    FILE,
    Bytes,
    add_data_sets,
    array,
    extents_of,
    image_set,
    labels_of,
    opened,
    unusable,
    write_at,
)
from vitprof.engine.storage.labels import read_ids
from vitprof.errors import DataError, SampleError

COPY_BYTES = 8 << 20


class Writer:
    """Collects the bytes of a split in a file beside: how long they are together is known only at the end."""

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        paths = _collected(directory, split.name)
        self._path = paths[0]
        self._bytes, self._offsets = (os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666) for path in paths)

    def add(self, start: int, chunk: Chunk) -> None:
        assert chunk.encoded is not None
        before = os.pread(self._offsets, 8, 8 * start) if start else bytes(8)
        if len(before) < 8:
            raise DataError(f"{self._path} lacks some of {start} samples; delete {self._path.parent}")
        begin = int(np.frombuffer(before, np.int64)[0])
        offsets = begin + np.cumsum([0, *map(len, chunk.encoded)], dtype=np.int64)
        write_at(self._bytes, memoryview(b"".join(chunk.encoded)), begin)
        write_at(self._offsets, memoryview(offsets.tobytes()), 8 * start)

    def flush(self) -> None:
        os.fsync(self._bytes)
        os.fsync(self._offsets)

    def close(self) -> None:
        os.close(self._bytes)
        os.close(self._offsets)


def _collected(directory: Path, split: str) -> tuple[Path, Path]:
    return directory / f"{split}.bytes", directory / f"{split}.offsets"


def finish(directory: Path, split: SplitFacts) -> None:
    """Bring what was collected into the HDF5 file. May come again after a kill. Raises `OSError`, `DataError`."""
    collected, offsets_file = _collected(directory, split.name)
    path = directory / FILE
    if not collected.exists() and path.exists():
        return
    offsets = np.fromfile(offsets_file, np.int64)[: split.n + 1]
    if len(offsets) != split.n + 1 or collected.stat().st_size < offsets[-1]:
        raise DataError(f"{collected} holds less than {split.n} samples; delete {directory}")
    name = f"X_{split.name}"
    small = {f"offsets_{split.name}": offsets, f"Y_{split.name}": split.labels}
    add_data_sets(path, {name: Bytes((int(offsets[-1]),))}, small)
    with opened(path) as file:
        position = extents_of(file[name]).offsets[0]
    with collected.open("rb") as source, path.open("r+b") as target:
        left = int(offsets[-1])
        while left:
            block = source.read(min(COPY_BYTES, left))
            write_at(target.fileno(), memoryview(block), position)
            left, position = left - len(block), position + len(block)
        os.fsync(target.fileno())
    offsets_file.unlink()
    collected.unlink()


# Twice the 0.1 MB of an average photo: while a split is finished its bytes are there twice.
ENCODED_FORMAT = Format(1, "encoded", Writer, lambda info: 220_000, finish)


class EncodedStorage:
    """One `pread` for each sample, at the place in the file that h5py and the offsets give."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        self._place = place
        self._path = place.root / FILE
        self._split = "train" if train else "test"
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

    def __len__(self) -> int:
        return len(self.labels)

    def read_encoded(self, index: int) -> bytes:
        file = self._files.get("data") or self._open()
        begin, end = self._positions[index : index + 2].tolist()
        if begin == end:
            raise SampleError(f"{self.name_of(index)} is empty; delete {self._place.root} and it is made again")
        self._place.reading(end - begin)
        data = os.pread(file, end - begin, begin)
        if len(data) != end - begin:
            raise unusable(self._path, "it became shorter while it was read")
        return data

    def _open(self) -> int:
        """The descriptor, which a forked child may share: pread says where to read each time."""
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
