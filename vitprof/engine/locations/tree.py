"""The files under a directory, in one order, with their sizes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from vitprof.errors import DataError

OF_TEST_SPLIT = re.compile(r"(images/)?test([./-]|$)")
"""Paths below a storage's root that hold nothing but test samples."""


def walk(directory: Path) -> Iterator[tuple[str, int]]:
    """Yields relative path and size in bytes of each regular file under `directory`, in order of their names.

    Links are followed, each directory once. Raises `DataError` that names what cannot be listed or is no file.
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
    """Returns the bytes in all files under `directory`."""
    return sum(n for _, n in walk(directory))


def is_for_training(name: str) -> bool:
    """Returns whether training may read the file of that path below a storage's root."""
    return not OF_TEST_SPLIT.match(name)


def unreadable(path: str | Path, error: Exception) -> DataError:
    """Returns the error to raise for a file or directory that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return DataError(f"{path} cannot be read ({reason}); make it readable, or remove it")
