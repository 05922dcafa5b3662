"""One image file for each sample: PNG files made from an IDX data set, or a data set's own JPEG files."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.config.parts import prepared_as
from vitprof.engine.data.datasets import open_source
from vitprof.engine.storage.contract import (
    Format,
    Place,
    SplitFacts,
    SplitWriter,
    StoredSplit,
    image_bytes,
    read_ids,
    read_labels,
)
from vitprof.errors import SampleError

FILES_IN_A_FOLDER = 1000
DISK_BLOCK_BYTES = 4096
"""On most file systems the room that a file takes on disk is a multiple of this."""
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC


def sample_path(index: int, name: str, *, train: bool) -> str:
    """Returns the path of the file of sample `index` of a split, under the storage's root: folders of 1,000 files."""
    return f"images/{'train' if train else 'test'}-{index // FILES_IN_A_FOLDER:03d}/{name}"


def write_file(path: str, content: bytes | memoryview) -> None:
    """Writes a small file. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


class FolderWriter(SplitWriter):
    """A writer of one file for each sample, at its `sample_path`; no file stays open."""

    def __init__(self, directory: Path, split: SplitFacts, suffix: str = "") -> None:
        self._directory, self._split, self._suffix = directory, split, suffix

    def add(self, start: int, images: NDArray[np.uint8] | list[bytes]) -> None:
        for i, image in enumerate(images, start):
            name = sample_path(i, self._split.ids[i], train=self._split.name == "train")
            path = f"{self._directory}/{name}{self._suffix}"
            if i == start or i % FILES_IN_A_FOLDER == 0:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            write_file(path, image if isinstance(image, bytes) else image.tobytes())


def on_disk(n_bytes: int) -> int:
    """Returns the bytes that a file of `n_bytes` takes on disk."""
    return math.ceil(n_bytes / DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES


RAW_FORMAT = Format(1, "pixels", FolderWriter, lambda info: on_disk(image_bytes(info)), resumable=True)


def _paths(root: Path, train: bool, suffix: str = "") -> list[str]:
    return [f"{root}/{sample_path(i, name, train=train)}{suffix}" for i, name in enumerate(read_ids(root, train=train))]


class RawFilesStorage(StoredSplit):
    """Pixels in one file for each sample, opened, read into its row of the batch and closed."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        super().__init__(info, place, train)
        self.labels = read_labels(place.root, train=train)
        self._paths = _paths(place.root, train)

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        out = self._room(indices, out)
        n_bytes = math.prod(self.shape)
        batch = out.view(-1).numpy().data  # view: a copy would leave `out` as it was
        end = memoryview(bytearray(1))  # receives a byte only if a file is too long
        first = 0
        for i in indices.tolist():
            path = self._paths[i]
            try:
                descriptor = os.open(path, READ_FLAGS)
                try:
                    n_read = os.readv(descriptor, [batch[first : first + n_bytes], end])
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise SampleError(f"{path} cannot be read ({error.strerror or error}); {self._remedy}") from error
            if n_read != n_bytes:
                length = f"more than {n_bytes:,}" if n_read > n_bytes else f"{n_read:,}"
                raise SampleError(f"{path} is damaged ({length} bytes instead of {n_bytes:,}); {self._remedy}")
            first += n_bytes
        self._place.reading(first, len(indices))
        return out


# A digit's PNG is about 500 bytes long: one block.
IMAGE_FORMAT = Format(1, "encoded", partial(FolderWriter, suffix=".png"), lambda info: DISK_BLOCK_BYTES, resumable=True)


class FilesStorage(StoredSplit):
    """Encoded images in one file each, opened, read whole and closed for each sample."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        super().__init__(info, place, train)
        if prepared_as("files", info.kind) is None:
            source = open_source(info, place.root, train=train)
            self.labels = torch.from_numpy(source.labels)
            self._paths = [str(source.path(i)) for i in range(len(source.ids))]  # type: ignore[attr-defined]
            return
        self.labels = read_labels(place.root, train=train)
        self._paths = _paths(place.root, train, ".png")

    def read_encoded(self, index: int) -> bytes:
        path = self._paths[index]
        try:
            descriptor = os.open(path, READ_FLAGS)
            try:
                size = os.fstat(descriptor).st_size
                encoded = os.read(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unreadable(path, f"cannot be read ({error.strerror or error})") from error
        if not encoded:
            raise self._unreadable(path, "is empty")
        if len(encoded) != size:
            raise self._unreadable(path, f"became shorter while it was read ({len(encoded):,} of {size:,} bytes)")
        self._place.reading(size, 1)
        return encoded

    def _unreadable(self, path: str, reason: str) -> SampleError:
        return SampleError(f"{path} {reason}; {self._remedy}")

    def name_of(self, index: int) -> str:
        return self._paths[index]
