"""Locations: where a storage's files are while a job reads them, and how fast they can be read
there.

`open_location` brings a prepared storage to the place that a config asks for and removes everything
it made when the job ends. Importing this module does not import torch; the dashboard asks
`vitprof.telemetry.tmpfs` for a RAM disk.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitprof import home
from vitprof.config import RunConfig, drives
from vitprof.datasets.files import OnProgress, Stop, writing
from vitprof.engine.locations.copying import CopyResult, copy_tree, is_for_training, tree_bytes
from vitprof.engine.locations.throttle import TokenBucket, describe
from vitprof.errors import DataError
from vitprof.telemetry.tmpfs import find_tmpfs, own_directory, ram_disk

if TYPE_CHECKING:
    from vitprof.engine.storage.contract import Location


@dataclass(frozen=True)
class Located:
    """A storage's files, where the job reads them."""

    location: Location
    note: str
    """A line about it for the user: "throttled to 30 MB/s and 207 ms for each file".

    Empty on the local disk."""
    copied: CopyResult = CopyResult(0, 0.0)
    """What was copied before training."""
    unmeasured: Location | None = None
    """Where evaluation reads, if elsewhere: the same files at the speed of their real drive."""

    def let_go(self) -> None:
        """Ends all waits for a slow drive, in all processes: what workers still read ahead is no
        longer needed.
        """
        if self.location.throttle is not None:
            self.location.throttle.close()


def remove_copies() -> None:
    """Removes the copies of jobs that are gone, from RAM disk and local disk.

    Those of running jobs are locked.
    """
    remove_leftovers(home.home() / "locations")
    tmpfs = find_tmpfs()
    if tmpfs:
        # A dead job's copy still takes RAM.
        with suppress(DataError):
            remove_leftovers(own_directory(tmpfs))


@contextmanager
def open_location(
    config: RunConfig,
    directory: Path,
    *,
    progress: OnProgress,
    stop: Stop,
    clock: Callable[[], float],
) -> Iterator[Located]:
    """Provides the files of `directory` at the location that the resolved `config` names, for the
    block.

    Everything made for it (copies, the state of a throttled drive) is removed at the end, also
    after an exception; what a killed job left is removed at the next start. Close storages and
    loaders before the block ends. Raises `DataError` (RAM disk missing or too small, disk full, a
    file that cannot be read) and `JobStopped`.
    """
    # Imported here: it imports torch.
    from vitprof.engine.storage.contract import Location

    remove_copies()
    on_disk = home.home() / "locations"
    skip = config.skip_unreadable
    copy = partial(
        copy_tree, directory, progress=progress, stop=stop, skip_unreadable=skip, clock=clock
    )
    if config.location in (None, "disk"):
        yield Located(Location(directory), "")
    elif config.location == "ram-disk":
        tmpfs = ram_disk(tree_bytes(directory, skip_unreadable=skip))
        with scratch_directory(own_directory(tmpfs), directory.name) as scratch:
            copied = copy(scratch / "copy", throttle=None)
            yield Located(
                Location(scratch / "copy"), f"copied to the RAM disk {tmpfs.path}", copied
            )
    else:
        with scratch_directory(on_disk, directory.name) as scratch:
            drive = drives.slow_drive(config)
            bucket = TokenBucket(scratch / "drive", drive, clock=clock)
            unmeasured = Location(directory)
            try:
                if config.location == "slow-drive":
                    throttled = Location(directory, bucket)
                    yield Located(throttled, describe(drive), unmeasured=unmeasured)
                else:
                    copied = copy(scratch / "copy", throttle=bucket, wanted=is_for_training)
                    note = f"copied first from a drive {describe(drive)}"
                    yield Located(Location(scratch / "copy"), note, copied, unmeasured)
            finally:
                bucket.close()


LOCK_SUFFIX = ".lock"
TRIES = 10
"""How often a directory is tried to be made where other processes remove its parent meanwhile."""


@contextmanager
def scratch_directory(parent: Path, label: str) -> Iterator[Path]:
    """Makes a new directory under `parent` (made if missing) for the block, and removes it with
    everything in it.

    Its owner holds a lock on a file next to it. The system releases that lock however the owner
    ends, so a directory whose lock is free is a leftover. Process ids would not do: they are
    reused, and mean nothing in another container. Raises `DataError` if the directory cannot be
    made.
    """
    # The host is part of the name because hosts may share a home, and locks do not always work
    # across hosts.
    name = f"{label}.{platform.node()}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = -1
    try:
        descriptor = _make(parent, name)
        yield parent / name
    finally:
        shutil.rmtree(parent / name, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)
        # rmdir fails while others still use the parent.
        with suppress(OSError):
            (parent / f"{name}{LOCK_SUFFIX}").unlink(missing_ok=True)
            parent.rmdir()


def _make(parent: Path, name: str) -> int:
    """Makes the directory.

    Returns the descriptor of its lock file, locked before that: see `remove_leftovers`.
    """
    with writing(parent, "make it writable, or choose another location"):
        # More than once only if another process removed the parent or the lock file meanwhile.
        for _ in range(TRIES):
            with suppress(FileNotFoundError):
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
    raise DataError(f"{parent} keeps being removed by other processes; stop them and try again")


def remove_leftovers(parent: Path) -> None:
    """Removes directories under `parent` whose owners on this host are gone."""
    try:
        names = os.listdir(parent)
    except OSError:
        # It is missing or not ours, so nothing of ours is in it.
        return
    # As `scratch_directory` names them: label, host, process, eight digits.
    host = re.escape(platform.node())
    pattern = re.compile(rf"(.+\.{host}\.\d+\.[0-9a-f]{{8}}){re.escape(LOCK_SUFFIX)}")
    for match in filter(None, map(pattern.fullmatch, names)):
        path = parent / match[0]
        # It may be gone meanwhile, another user's, or locked because it is in use.
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(parent / match[1], ignore_errors=True)
                path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
