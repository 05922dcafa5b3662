"""One image file for each sample: PNG files made from an IDX data set, or a data set's own JPEG files."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from vitprof.config.catalog import DatasetInfo
from vitprof.config.parts import prepared_as
from vitprof.engine.data.source import open_source
from vitprof.engine.storage import Place
from vitprof.engine.storage.format import Format, SplitFacts
from vitprof.engine.storage.labels import read_ids, read_labels
from vitprof.engine.storage.rawfiles import DISK_BLOCK_BYTES, READ_FLAGS, FolderWriter, sample_path
from vitprof.errors import SampleError


def _open_writer(directory: Path, split: SplitFacts) -> FolderWriter:
    return FolderWriter(directory, split, ".png")


# A digit's PNG is about 500 bytes long: one block.
FORMAT = Format(1, "encoded", _open_writer, lambda info: DISK_BLOCK_BYTES, resumable=True)


class FilesStorage:
    """Encoded images in one file each, opened, read whole and closed for each sample."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        self._place = place
        if prepared_as("files", info.kind) is None:
            source = open_source(info, place.root, train=train)
            self.labels = torch.from_numpy(source.labels)
            self._paths = [str(source.path(i)) for i in range(len(source.ids))]  # type: ignore[attr-defined]
            return
        self.labels = read_labels(place.root, train=train)
        self._paths = [
            f"{place.root}/{sample_path(i, name, train=train)}.png"
            for i, name in enumerate(read_ids(place.root, train=train))
        ]

    def __len__(self) -> int:
        return len(self._paths)

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

    def _unreadable(self, path: str, why: str) -> SampleError:
        return SampleError(f"{path} {why}; delete {self._place.root} and it is made again")

    def name_of(self, index: int) -> str:
        return self._paths[index]

    def close(self) -> None:
        """Does nothing: no file stays open between reads."""
