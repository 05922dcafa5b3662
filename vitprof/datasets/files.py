"""How whatever makes or reads files of data reports its progress, stops, fails and takes turns."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitprof import home
from vitprof.datasets.own import registry
from vitprof.errors import DataError, JobStopped

OnProgress = Callable[[float, str], None]
"""Receives how far along something is: a fraction 0..1 and a short message."""

Stop = Callable[[], bool]
"""Called now and then; returns True to stop.

`JobStopped` is then raised, and nothing half-made is ever used."""


def silent(fraction: float, message: str) -> None:
    """Ignores progress."""


def never() -> bool:
    """Returns that nothing is to stop."""
    return False


def report(progress: OnProgress, stop: Stop, fraction: float, message: str, activity: str) -> None:
    """Reports progress. Raises `JobStopped`, "stopped while" `activity`, if a stop is asked for."""
    if stop():
        raise JobStopped(f"stopped while {activity}")
    progress(fraction, message)


def made_again(root: Path) -> str:
    """Returns what to do about a data set or storage under `root` that is damaged."""
    if root.parent == home.data_dir() and root.name.startswith("own-"):
        own = registry.everything().get(root.name.removeprefix("own-"))
        if own:
            return f"look at the set again: {own.to_add}"
    return f"delete {root} and it is made again"


READABLE = "make it readable, or remove it"


def leads_nowhere(path: Path | str) -> bool:
    """Returns whether a path is a link to what cannot be found, such as an image that was removed."""
    return os.path.islink(path) and not os.path.exists(path)


def read_error(path: Path | str, reason: object, remedy: str = READABLE) -> DataError:
    """Returns the `DataError` to raise if `path` cannot be read: one line.

    `reason` is a text or what was raised.
    """
    if isinstance(reason, OSError):
        reason = reason.strerror or reason
    return DataError(f"{path} cannot be read ({' '.join(str(reason).split())}); {remedy}")


@contextmanager
def reading(path: Path | str, remedy: str = READABLE) -> Iterator[None]:
    """Turns an `OSError` raised inside into a `DataError` that says in one line why `path` could
    not be read.
    """
    try:
        yield
    except OSError as error:
        raise read_error(path, error, remedy) from error


OTHER_HOME = "set VITPROF_HOME to a directory with more room that can be written to"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the system: no space left, over the quota, over the limit on file size."""


@contextmanager
def writing(path: Path | str, remedy: str = OTHER_HOME) -> Iterator[None]:
    """Turns an `OSError` raised inside into a `DataError` that says in one line why `path` could
    not be written.
    """
    try:
        yield
    except OSError as error:
        raise write_error(path, error, remedy) from error


def write_error(path: Path | str, error: OSError, remedy: str = OTHER_HOME) -> DataError:
    """Returns the `DataError` to raise if writing `path` failed with `error`."""
    if error.errno == errno.EFBIG:
        return DataError(
            f"{path} exceeds the limit on file size; raise the limit (ulimit -f) or {remedy}"
        )
    if error.errno in NO_ROOM:
        return DataError(f"disk full while writing {path}; free some space or {remedy}")
    return DataError(f"cannot write {path}: {error.strerror or error}; {remedy}")


def ensure_space(directory: Path, needed_bytes: int, remedy: str = OTHER_HOME) -> None:
    """Raises `DataError` if the file system of the existing `directory` has less than
    `needed_bytes` free.
    """
    with writing(directory, remedy):
        free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise DataError(
            f"disk full: {directory.parent} needs {needed_bytes / 1e6:.1f} MB and has {free_bytes / 1e6:.1f} MB free; "
            f"free some space or {remedy}"
        )


def fsync(path: Path) -> None:
    """Waits until a file's or directory's content is on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(made: Path, root: Path) -> None:
    """Moves the finished directory `made` to `root`, in place of what is there. Raises `OSError`."""
    # A directory that is not empty cannot be replaced in one step.
    outdated = root.with_name(f".{root.name}.old")
    shutil.rmtree(outdated, ignore_errors=True)
    if root.is_dir():
        root.rename(outdated)
    os.replace(made, root)
    fsync(root.parent)
    shutil.rmtree(outdated, ignore_errors=True)


LOCK_RETRY_S = 0.2
"""How often (s) a lock that another process holds is tried again."""


@contextmanager
def locked(path: Path, doing: str, progress: OnProgress, stop: Stop) -> Iterator[None]:
    """Holds the lock file at `path`, which is not removed.

    `doing` says in messages what the lock is held for.

    Raises `JobStopped` if `stop()` turned true while waiting, `DataError` if the file cannot be
    written.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            with writing(path), suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            activity = f"waiting for another process that is {doing}"
            report(progress, stop, 0.0, f"another process is {doing}", activity)
            time.sleep(LOCK_RETRY_S)
        yield
    finally:
        os.close(descriptor)
