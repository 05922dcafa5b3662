"""Reads a data set's own files, of which storages are made."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitprof.cores import job_cores
from vitprof.datasets import files
from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.mnist import read_split
from vitprof.datasets.photos import SUFFIXES, unreadable
from vitprof.errors import DataError


class Source(Protocol):
    """One split of a data set as it was made, in its stored order."""

    ids: list[str]
    """A name for each sample, such as "train-000123": unique in the split and fit for a file
    name."""
    labels: NDArray[np.int64]
    """(n,) int64."""

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns images [start, stop) as (n, image_size, image_size, channels) uint8; JPEG files
        resized and cropped.

        Raises a `SampleError` that names the file of a sample that cannot be read.
        """

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """Returns images [start, stop) as the bytes of JPEG files, unchanged from disk, or of PNG
        files.

        Raises a `SampleError` that names the file of a sample that cannot be read.
        """


def open_source(info: DatasetInfo, root: Path, *, train: bool) -> Source:
    """Returns one split of the data set under `root`.

    Raises `DataError` if its files are missing or damaged.
    """
    if info.kind == "idx":
        return IdxSource(info, root, train)
    return PhotosSource(info, root, train)


class IdxSource:
    """A split in MNIST's IDX files."""

    def __init__(self, info: DatasetInfo, root: Path, train: bool) -> None:
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


class PhotosSource:
    """A split in JPEG files, in the order of torchvision's ImageFolder: by class folder, then by
    file name.

    Raises `DataError` if the split has no images, or the wrong number of class folders.
    """

    def __init__(self, info: DatasetInfo, root: Path, train: bool) -> None:
        self._shape = (info.image_size, info.image_size, info.channels)
        split = root / ("train" if train else "test")
        remedy = files.made_again(root)
        self._paths: list[Path] = []
        labels: list[int] = []
        with files.reading(split, remedy):
            classes = sorted(entry.name for entry in os.scandir(split) if entry.is_dir())
            for label, name in enumerate(classes):
                images = sorted(n for n in os.listdir(split / name) if n.lower().endswith(SUFFIXES))
                self._paths += [split / name / image for image in images]
                labels += [label] * len(images)
        if len(classes) != info.classes:
            raise DataError(
                f"{split} has {len(classes)} class folders instead of {info.classes}; {remedy}"
            )
        expected = info.n_train if train else info.n_test
        if len(labels) != expected:
            raise DataError(f"{split} has {len(labels):,} images instead of {expected:,}; {remedy}")
        self.ids = [path.stem for path in self._paths]
        """Unique: `datasets.check` lets no file in that `make` has not made."""
        self.labels = np.array(labels, np.int64)

    def path(self, index: int) -> Path:
        """Returns the path of a sample's file."""
        return self._paths[index]

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """See `Source`. Raises `SampleError` for an unreadable or empty file."""
        return [self._read(path) for path in self._paths[start:stop]]

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        """See `Source`. simplejpeg decodes, in one thread for each core."""
        paths = self._paths[start:stop]
        out = np.empty((len(paths), *self._shape), np.uint8)
        from vitprof.engine.decoders import open_decoder
        from vitprof.engine.transforms import centre_crop

        decode = open_decoder("simplejpeg")
        crop = partial(centre_crop, size=self._shape[0])

        def fill(i: int) -> None:
            try:
                decode(self._read(paths[i]), crop, out[i])
            except ValueError as error:
                raise unreadable(paths[i], error) from error

        with ThreadPoolExecutor(job_cores(), "vitprof-photos") as pool:
            list(pool.map(fill, range(len(paths))))
        return out

    def _read(self, path: Path) -> bytes:
        try:
            encoded = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error.strerror or error) from error
        if not encoded:
            raise unreadable(path, "it is empty")
        return encoded
