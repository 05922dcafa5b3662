"""JPEG files one after another in one HDF5 data set.

X_train holds the bytes of all files of the training split as one row of uint8. offsets_train (n + 1,) int64 says where
each file begins and where the last one ends. Y_train (n,) int64 are the labels. The same for "test".
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage import Place
from vitprof.engine.storage.format import Chunk, Format, SplitFacts, SplitWriter
from vitprof.engine.storage.hdf5_file import (
    HDF5_FILE,
    FileBeingWritten,
    array,
    image_set,
    labels_of,
    opened,
)
from vitprof.engine.storage.labels import read_ids
from vitprof.engine.storage.unusable import unusable
from vitprof.errors import SampleError

COPY_BYTES = 8 << 20


class Writer(SplitWriter):
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
ENCODED_FORMAT = Format(1, "encoded", Writer, lambda info: 220_000)


class EncodedStorage:
    """Encoded images, each read with one `pread` at the position that h5py and the offsets give."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        self._place = place
        self._path = place.root / HDF5_FILE
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
        file = self._files["data"] if "data" in self._files else self._open()
        begin, end = self._positions[index : index + 2].tolist()
        if begin == end:
            raise SampleError(f"{self.name_of(index)} is empty; delete {self._place.root} and it is made again")
        self._place.reading(end - begin)
        try:
            data = os.pread(file, end - begin, begin)
        except OSError as error:
            raise SampleError(
                f"{self.name_of(index)} cannot be read ({error.strerror or error}); delete {self._place.root} and it "
                "is made again"
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
