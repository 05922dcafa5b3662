"""Temporary directories. Each is removed by the process that made it; that of a killed process at the next start."""

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
    """Makes a new directory under `parent` (made if missing) for the block, and removes it with everything in it.

    Its owner holds a lock on a file next to it. The system releases that lock however the owner ends, so a directory
    whose lock is free is a leftover. Process ids would not do: they are reused, and mean nothing in another container.
    Raises `DataError` if the directory cannot be made.
    """
    # The host is part of the name because hosts may share a home, and locks do not always work across hosts.
    name = f"{label}.{platform.node()}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = -1
    try:
        descriptor = _make(parent, name)
        yield parent / name
    finally:
        shutil.rmtree(parent / name, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)
        with contextlib.suppress(OSError):  # rmdir fails while others still use the parent
            (parent / f"{name}{LOCK_SUFFIX}").unlink(missing_ok=True)
            parent.rmdir()


def _make(parent: Path, name: str) -> int:
    """Makes the directory. Returns the descriptor of its lock file, locked before that: see `remove_leftovers`."""
    try:
        for _ in range(10):  # more than once only if another process removed the parent or the lock file meanwhile
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
    except OSError:  # missing or not ours, so nothing of ours is in it
        return
    pattern = re.compile(rf"(.+\.{re.escape(platform.node())}\.\d+\.[0-9a-f]{{8}}){re.escape(LOCK_SUFFIX)}")
    for match in filter(None, map(pattern.fullmatch, names)):
        path = parent / match[0]
        with contextlib.suppress(OSError):  # gone meanwhile, another user's, or locked because it is in use
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(parent / match[1], ignore_errors=True)
                path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
