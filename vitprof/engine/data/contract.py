"""What a data set's own files are made by (`Maker`) and read through (`Source`), how makers report, stop and fail."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitprof.errors import DataError, JobStopped

OnProgress = Callable[[float, str], None]
"""Receives how far along something is: a fraction 0..1 and a short message."""

Stop = Callable[[], bool]
"""Called now and then; returns True to stop. `JobStopped` is then raised, and nothing half-made is ever used."""


def silent(fraction: float, message: str) -> None:
    """Ignores progress."""


def never() -> bool:
    return False


class Maker(Protocol):
    """A module that makes a data set."""

    IDENTITY: dict[str, int | str]
    """Identity of what it makes; a set on disk with a different one is made again."""

    @property
    def make(self) -> Callable[..., None]:
        """The function `make(directory, [n_train, n_test,] *, progress, stop)`: fills the existing `directory`."""


class Source(Protocol):
    """One split of a data set as it was made, in its stored order."""

    ids: list[str]
    """A name for each sample, such as "train-000123": unique in the split and fit for a file name."""
    labels: NDArray[np.int64]
    """(n,) int64."""

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns images [start, stop) as (n, image_size, image_size, channels) uint8. Raises `SampleError`."""

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """Returns images [start, stop) as the bytes of JPEG or PNG files. Raises a `SampleError` with the file."""


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


def fsync(path: Path) -> None:
    """Waits until a file's or directory's content is on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


POLL_S = 0.2


@contextmanager
def locked(path: Path, doing: str, progress: OnProgress, stop: Stop) -> Iterator[None]:
    """Holds the lock file at `path`. Raises `JobStopped` if `stop()` turned true meanwhile, and `DataError`."""
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as error:
                raise write_error(path, error) from error
            if stop():
                raise JobStopped(f"stopped while waiting for another process that is {doing}")
            progress(0.0, f"another process is {doing}")
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)
