"""The data set `mnist`, downloaded by torchvision, and strict reading and writing of IDX files,
also for `digits`.

An IDX file is a big-endian header (magic number, then the length of each axis) followed by the raw
values. Only MNIST's two kinds are supported: unsigned bytes with one axis (labels) or three
(images).
"""

import http.client
import math
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitprof.datasets import files
from vitprof.datasets.files import OnProgress, Stop, never, silent
from vitprof.errors import DataError

MAGICS: dict[int, int] = {1: 0x00000801, 3: 0x00000803}
"""Number of axes -> magic number: 0x08 stands for unsigned bytes, the last byte is the number of
axes."""

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


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Writes a uint8 `array` of shape (n,) or (n, height, width) to `path`; removes the file if
    that fails.

    Raises `DataError` if the file cannot be written, `ValueError` for another dtype or number of
    axes.
    """
    if array.dtype != np.uint8 or array.ndim not in MAGICS:
        raise ValueError(
            f"IDX here holds uint8 with 1 or 3 axes, not {array.dtype} with {array.ndim}"
        )
    header = struct.pack(f">{1 + array.ndim}I", MAGICS[array.ndim], *array.shape)
    with files.writing(path):
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

    Raises a `DataError` that names the file if it is missing or unreadable, if the magic number is
    not one of `MAGICS`, or if the file is not exactly as long as its header says.
    """
    remedy = files.made_again(path.parents[2])
    try:
        with files.reading(path, remedy), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            (magic,) = struct.unpack(">I", file.read(4))
            axes = {number: n for n, number in MAGICS.items()}.get(magic)
            if axes is None:
                wrong = f"magic number 0x{magic:08x} instead of 0x00000801 or 0x00000803"
                raise files.read_error(path, wrong, remedy)
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            expected = 4 + 4 * axes + math.prod(shape)
            # Checked before allocating: a damaged header may ask for any size.
            if size != expected:
                wrong = f"{size} bytes long, and its header says {expected}"
                raise files.read_error(path, wrong, remedy)
            flat = np.empty(math.prod(shape), np.uint8)
            if file.readinto(flat.data) != flat.nbytes:
                raise files.read_error(path, "it became shorter while it was read", remedy)
    except struct.error:
        raise files.read_error(path, "it ends inside its header", remedy) from None
    return flat.reshape(shape)


def read_split(root: Path, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns images (n, 28, 28) uint8 and labels (n,) int64, 0..9, of the training or the test
    split under `root`.

    Raises `DataError` if a file is missing or damaged, or if images and labels do not belong
    together.
    """
    images_file, labels_file = split_files(root, train)
    images = read_idx(images_file)
    labels = read_idx(labels_file)
    if images.shape != (*labels.shape, 28, 28) or labels.max(initial=0) > 9:
        raise DataError(
            f"{images_file} {images.shape} and {labels_file.name} {labels.shape} are not images of 28 x 28 with "
            f"labels 0 to 9; {files.made_again(root)}"
        )
    return images, labels.astype(np.int64)


IDENTITY: dict[str, int | str] = {"maker": "torchvision MNIST", "version": 1}
"""Identity of what `make` downloads; it is downloaded again if this changes."""

TIMEOUT_S = 20.0
"""How long the network may be silent. torchvision tries up to three addresses before it gives
up."""

ACTIVITY = "MNIST was being downloaded"
NEEDED_BYTES = 70_000_000
"""Room for the archives (12 MB) and the unpacked files (55 MB), which exist together for a
moment."""


def make(directory: Path, *, progress: OnProgress = silent, stop: Stop = never) -> None:
    """Downloads MNIST to `directory`/MNIST/raw as four unpacked IDX files. `directory` must exist.

    torchvision checks the archives' MD5. `stop()` is called before and after the download, not in
    between. Raises `DataError` if the download or the disk fails, `JobStopped` if asked to stop.
    Files downloaded until then stay: `prepare` works in a directory that it removes.
    """
    files.ensure_space(directory, NEEDED_BYTES)
    files.report(progress, stop, 0.0, "downloading MNIST", ACTIVITY)
    from torchvision.datasets import MNIST

    # torchvision prints what it downloads; a command's standard output may have to be JSON.
    with _socket_timeout(TIMEOUT_S), redirect_stdout(sys.stderr):
        try:
            MNIST(str(directory), train=True, download=True)
        except (OSError, RuntimeError, http.client.HTTPException, EOFError) as error:
            if isinstance(error, OSError) and error.errno in files.NO_ROOM:
                raise files.write_error(directory, error) from error
            raise DataError(
                f"MNIST could not be downloaded ({_reason(error)}); choose the data set 'digits', which is made here"
            ) from error
    with files.writing(directory):
        for archive in raw_dir(directory).glob("*.gz"):
            archive.unlink()
    files.report(progress, stop, 1.0, "downloaded MNIST", ACTIVITY)


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Sets the timeout of new sockets for the block, in the whole process. torchvision would let
    them wait forever.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _reason(error: Exception) -> str:
    """Returns one line for `error`.

    torchvision's has a line for each mirror, between headings: only the reasons are kept, each
    once.
    """
    headings = ("Error downloading", "Tried ")
    lines = [line.strip(" <>") for line in str(error).splitlines()]
    messages = [line for line in lines if line and not line.startswith(headings)]
    return "; ".join(dict.fromkeys(messages)) or type(error).__name__
