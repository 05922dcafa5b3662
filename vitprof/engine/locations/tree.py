"""The files under a directory, in one order, with their sizes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from vitprof.errors import DataError

OF_TEST_SPLIT = re.compile(r"(images/)?test([./-]|$)")
"""Matches paths, relative to a storage's root, that hold only test samples."""


def walk(directory: Path) -> Iterator[tuple[str, int]]:
    """Yields the relative path and the size in bytes of each regular file under `directory`, ordered by name.

    Links are followed; each directory is visited once. Raises a `DataError` that names what cannot be listed or is not
    a file.
    """
    seen: set[tuple[int, int]] = set()

    def fail(error: OSError) -> None:
        raise unreadable(error.filename or directory, error) from error

    for top, folders, names in os.walk(directory, followlinks=True, onerror=fail):
        facts = os.stat(top)
        if (facts.st_dev, facts.st_ino) in seen:
            folders.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        folders.sort()
        inside = os.path.relpath(top, directory)
        for name in sorted(names):
            path = os.path.join(top, name)
            try:
                facts = os.stat(path)
            except OSError as error:
                raise unreadable(path, error) from error
            if not stat.S_ISREG(facts.st_mode):
                raise DataError(f"{path} is neither a file nor a directory; remove it")
            yield name if inside == os.curdir else f"{inside}{os.sep}{name}", facts.st_size


def tree_bytes(directory: Path) -> int:
    """Returns the total size of the files under `directory`, in bytes. Raises `DataError` as `walk` does."""
    return sum(n for _, n in walk(directory))


def is_for_training(name: str) -> bool:
    """Returns whether training may read the file `name`, a path relative to a storage's root."""
    return not OF_TEST_SPLIT.match(name)


def unreadable(path: str | Path, error: Exception) -> DataError:
    """Returns the error to raise for a file or directory that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return DataError(f"{path} cannot be read ({reason}); make it readable, or remove it")
