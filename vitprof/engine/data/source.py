"""A data set's own samples, from which storages are made."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitprof.config.catalog import DatasetInfo


class Source(Protocol):
    """One split of a data set as it was made, in its stored order."""

    ids: list[str]
    """A name for each sample, such as "train-000123": unique in the split and fit for a file name."""
    labels: NDArray[np.int64]
    """(n,) int64."""

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns images [start, stop) as (n, image_size, image_size, channels) uint8; JPEG files resized and cropped.

        Raises a `SampleError` that names the file of a sample that cannot be read.
        """

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """Returns images [start, stop) as the bytes of JPEG files, unchanged from disk, or of PNG files.

        Raises a `SampleError` that names the file of a sample that cannot be read.
        """


class IdxSource:
    """A split in MNIST's IDX files."""

    def __init__(self, info: DatasetInfo, root: Path, train: bool) -> None:
        from vitprof.engine.data import read_split

        self._images, self.labels = read_split(root, train)
        split = "train" if train else "test"
        self.ids = [f"{split}-{i:06d}" for i in range(len(self.labels))]

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        return self._images[start:stop, :, :, None]

    def encoded(self, start: int, stop: int) -> list[bytes]:
        from PIL import Image

        files = []
        for image in self._images[start:stop]:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            files.append(file.getvalue())
        return files


def open_source(info: DatasetInfo, root: Path, *, train: bool) -> Source:
    """Returns one split of the data set under `root`. Raises `DataError` if its files are missing or damaged."""
    if info.kind == "idx":
        return IdxSource(info, root, train)
    from vitprof.engine.data.photos import PhotosSource

    return PhotosSource(info, root, train)
