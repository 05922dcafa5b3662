"""MNIST's IDX files: where they are under a root, and strict reading and writing of them.

An IDX file is a big-endian header (magic number, then the length of each axis) followed by the raw values.
Only MNIST's two kinds are supported: unsigned bytes with one axis (labels) or three (images).
"""

from __future__ import annotations

import errno
import io
import math
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitprof.config.catalog import DatasetInfo
from vitprof.errors import DataError

MAGICS: dict[int, int] = {1: 0x00000801, 3: 0x00000803}
"""Number of axes -> magic number: 0x08 stands for unsigned bytes, the last byte is the number of axes."""

# The names that torchvision.datasets.MNIST looks for, without the .gz it also removes.
FILES: tuple[str, ...] = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def raw_dir(root: Path) -> Path:
    """Returns the directory where torchvision looks for the four files if its root is `root`."""
    return root / "MNIST" / "raw"


def split_files(root: Path, train: bool) -> tuple[Path, Path]:
    """Returns the images file and the labels file of the training or the test split under `root`."""
    images, labels = FILES[:2] if train else FILES[2:]
    return raw_dir(root) / images, raw_dir(root) / labels


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` raised inside into a `DataError` that says in one line why `path` could not be written."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> DataError:
    """Returns the `DataError` to raise if writing `path` failed with `error`."""
    remedy = "set VITPROF_HOME to a directory with more room"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "disk" if error.errno == errno.ENOSPC else "disk quota"
        return DataError(f"{what} full while writing {path}; free some space or {remedy}")
    if error.errno == errno.EFBIG:
        return DataError(f"{path} exceeds the limit on file size; raise the limit (ulimit -f) or {remedy}")
    return DataError(
        f"cannot write {path}: {error.strerror or error}; set VITPROF_HOME to a directory that can be written to"
    )


def ensure_space(directory: Path, needed_bytes: int) -> None:
    """Raises `DataError` if the file system of the existing `directory` has less than `needed_bytes` free."""
    with writing(directory):
        free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise DataError(
            f"disk full: {directory.parent} needs {needed_bytes / 1e6:.1f} MB and has {free_bytes / 1e6:.1f} MB free; "
            "free some space or set VITPROF_HOME to a directory with more room"
        )


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Writes a uint8 `array` of shape (n,) or (n, height, width) to `path`; removes the file if that fails.

    Raises `DataError` if the file cannot be written, `ValueError` for another dtype or number of axes.
    """
    if array.dtype != np.uint8 or array.ndim not in MAGICS:
        raise ValueError(f"IDX here holds uint8 with 1 or 3 axes, not {array.dtype} with {array.ndim}")
    header = struct.pack(f">{1 + array.ndim}I", MAGICS[array.ndim], *array.shape)
    with writing(path):
        file = path.open("wb")
        try:
            with file:
                file.write(header)
                file.write(np.ascontiguousarray(array).reshape(-1).data)
        except OSError:
            path.unlink(missing_ok=True)
            raise


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Reads an IDX file. Returns a writable uint8 array of shape (n,) or (n, height, width).

    Raises a `DataError` that names the file if it is missing or unreadable, if the magic number is not one of `MAGICS`,
    or if the file is not exactly as long as its header says.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            magic = _header(path, file.read(4), 1)[0]
            axes = {number: n for n, number in MAGICS.items()}.get(magic)
            if axes is None:
                raise _unusable(path, f"magic number 0x{magic:08x} instead of 0x00000801 or 0x00000803")
            shape = _header(path, file.read(4 * axes), axes)
            expected = 4 + 4 * axes + math.prod(shape)
            if size != expected:  # checked before allocating: a damaged header may ask for any size
                raise _unusable(path, f"{size} bytes long, and its header says {expected}")
            flat = np.empty(math.prod(shape), np.uint8)
            if file.readinto(flat.data) != flat.nbytes:
                raise _unusable(path, "it became shorter while it was read")
    except FileNotFoundError:
        raise _unusable(path, "it is missing") from None
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    return flat.reshape(shape)


def _header(path: Path, raw: bytes, n: int) -> tuple[int, ...]:
    """Returns `n` big-endian unsigned 32-bit integers."""
    if len(raw) != 4 * n:
        raise _unusable(path, "it ends inside its header")
    return struct.unpack(f">{n}I", raw)


def _unusable(path: Path, reason: str) -> DataError:
    return DataError(f"{path} cannot be read ({reason}); delete the data set's directory and it is made again")


def read_split(root: Path, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns images (n, 28, 28) uint8 and labels (n,) int64, 0..9, of the training or the test split under `root`.

    Raises `DataError` if a file is missing or damaged, or if images and labels do not belong together.
    """
    images_file, labels_file = split_files(root, train)
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.shape != (*labels.shape, 28, 28) or labels.max(initial=0) > 9:
        raise DataError(
            f"{images_file} {images.shape} and {labels_file.name} {labels.shape} are not images of 28 x 28 with "
            f"labels 0 to 9; delete {root} and it is made again"
        )
    return images, labels.astype(np.int64)


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
