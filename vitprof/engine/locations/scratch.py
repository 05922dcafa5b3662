"""Directories that go away with the process that made them; those of killed processes with the next one that starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitprof.errors import DataError

LOCK_SUFFIX = ".lock"


@contextmanager
def scratch_directory(parent: Path, label: str) -> Iterator[Path]:
    """A new directory under `parent` (made, if need be), removed at the end with everything in it.

    Its owner holds a lock on a file beside it. The system lets go of that lock however the owner ends, so whose lock
    can be had is left over: process ids may be used again, and mean nothing in another container. Raises `DataError`.
    """
    # The host stands in the name because a home may be shared by hosts, and locks do not always reach that far.
    name = f"{label}.{platform.node()}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = -1
    try:
        descriptor = _make(parent, name)
        yield parent / name
    finally:
        shutil.rmtree(parent / name, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)
        with contextlib.suppress(OSError):  # the second: others still use it
            (parent / f"{name}{LOCK_SUFFIX}").unlink(missing_ok=True)
            parent.rmdir()


def _make(parent: Path, name: str) -> int:
    """Makes the directory; gives the open, locked file beside it. The lock comes first: see `remove_leftovers`."""
    try:
        for _ in range(10):  # again only when somebody removed the parent, or took the lock's file for a leftover
            with contextlib.suppress(FileNotFoundError):
                parent.mkdir(parents=True, exist_ok=True)
                remove_leftovers(parent)
                descriptor = os.open(parent / f"{name}{LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if os.fstat(descriptor).st_nlink:
                        (parent / name).mkdir(mode=0o700)
                        return descriptor
                except OSError:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
    except OSError as error:
        raise DataError(
            f"cannot write to {parent}: {error.strerror or error}; make it writable, or choose another location"
        ) from error
    raise DataError(f"{parent} keeps being removed by other processes; stop them and try again")


def remove_leftovers(parent: Path) -> None:
    """Removes directories under `parent` whose owners on this host are gone."""
    try:
        names = os.listdir(parent)
    except OSError:  # not there, or not ours: then there is nothing of ours in it
        return
    pattern = re.compile(rf"(.+\.{re.escape(platform.node())}\.\d+\.[0-9a-f]{{8}}){re.escape(LOCK_SUFFIX)}")
    for match in filter(None, map(pattern.fullmatch, names)):
        path = parent / match[0]
        with contextlib.suppress(OSError):  # gone meanwhile, somebody else's, or locked: in use
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(parent / match[1], ignore_errors=True)
                path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
