"""WebDataset's tar shards: an image and its label for each sample, read by position."""

import contextlib
import io
import math
import os
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage import contract
from vitprof.errors import SampleError
from vitprof.forms.image_files import suffix

SHARD = 10_000
"""Samples in a shard: about 1 GB of photos, as WebDataset's documentation advises."""
HEADER_BYTES = 512
"""The header of a member with a short name."""


def shard_path(root: Path, split: str, number: int) -> Path:
    """Returns the path of a split's shard, numbered from 0."""
    return root / f"{split}-{number:06d}.tar"


def index_path(root: Path, split: str) -> Path:
    """Returns the path of a split's index: (n, 2) int64, where each image begins in its shard, and
    its bytes.
    """
    return root / f"{split}-index.npy"


class Writer(contract.SplitWriter):
    """A writer of shards, and of an index: where the image of each sample begins in its shard, and
    how long it is.
    """

    def __init__(self, directory: Path, split: contract.SplitFacts) -> None:
        self._directory = directory
        self._split = split
        self._index = np.zeros((split.n, 2), np.int64)
        self._shard: tarfile.TarFile | None = None

    def add(self, start: int, images: list[bytes]) -> None:
        for at, image in enumerate(images, start):
            if at % SHARD == 0 or self._shard is None:
                self.close()
                path = shard_path(self._directory, self._split.name, at // SHARD)
                self._shard = tarfile.open(path, "w")  # noqa: SIM115
            self._index[at] = self._shard.offset + HEADER_BYTES, len(image)
            label = str(int(self._split.labels[at])).encode()
            for name, data in ((suffix(image) or ".jpg", image), (".cls", label)):
                member = tarfile.TarInfo(f"{at:09d}{name}")
                member.size = len(data)
                self._shard.addfile(member, io.BytesIO(data))

    def finish(self) -> None:
        np.save(index_path(self._directory, self._split.name), self._index)

    def close(self) -> None:
        if self._shard is not None:
            self._shard.close()


# Two headers, the label's block and what fills the image's: 2 KiB, and the 0.1 MB of an average
# photo.
FORMAT = contract.Format(1, "encoded", Writer, lambda info: 110_000)


class TarStorage(contract.StoredSplit):
    """Encoded images, each read with one `pread` at the position that the index gives."""

    def __init__(self, info: DatasetInfo, place: contract.Place, train: bool) -> None:
        super().__init__(info, place, train)
        self.labels = contract.read_labels(place.root, train=train)
        path = index_path(place.root, self._split)
        wanted = (len(self.labels), 2)
        try:
            with contract.reading(path):
                self._index: NDArray[np.int64] = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise contract.unusable(path, "it is damaged") from error
        if self._index.dtype != np.int64 or self._index.shape != wanted:
            raise contract.unusable(
                path, f"it holds {self._index.dtype} {self._index.shape}, not int64 {wanted}"
            )
        n_shards = math.ceil(len(self.labels) / SHARD)
        self._shards = [shard_path(place.root, self._split, at) for at in range(n_shards)]

    def _open(self) -> list[io.FileIO]:
        with contextlib.ExitStack() as opened:
            files = []
            for path in self._shards:
                with contract.reading(path):
                    files.append(opened.enter_context(io.FileIO(path)))
            # They stay open; after an error those that were opened are closed.
            opened.pop_all()
        return files

    def read_encoded(self, index: int) -> bytes:
        begin, size = self._index[index].tolist()
        try:
            data = os.pread(self._here()[index // SHARD].fileno(), size, begin)
        except OSError as error:
            what = f"{self.name_of(index)} cannot be read ({error.strerror})"
            raise self._unusable(what, SampleError) from error
        if len(data) != size or not data:
            what = f"{self.name_of(index)} is empty, or its shard too short"
            raise self._unusable(what, SampleError)
        self._place.reading(size)
        return data

    def name_of(self, index: int) -> str:
        return f"{self._shards[index // SHARD]}: {index:09d}"

    def close(self) -> None:
        for file in self._opened or ():
            file.close()
        super().close()
