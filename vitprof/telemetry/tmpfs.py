"""Finds a file system in RAM. No torch here: the page "Strategies" uses it too."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import psutil

from vitprof.errors import DataError
from vitprof.formats import size

FSTYPES = ("tmpfs", "ramfs")
PREFERRED = Path("/dev/shm")
SYSTEM = ("/proc", "/sys", "/dev", "/run/lock", "/run/credentials")
"""Mounts that belong to the system; `PREFERRED` is the one under /dev that every program may
use."""
LEAST_ROOM = 256 * 2**20
"""At least this (bytes) stays free on a RAM disk.

Workers hand over batches in shared memory, which is /dev/shm too, and die of a bus error where it
is full."""
LEAST_SHARE = 0.1
"""At least this share of a RAM disk's size stays free, for the same reason."""


@dataclass(frozen=True)
class Tmpfs:
    """A file system in RAM that can be written to."""

    path: Path
    """Where it is mounted."""
    free_bytes: int
    """Room for a copy: what is free on it and in RAM, less what stays free for workers' shared
    memory."""


def find_tmpfs() -> Tmpfs | None:
    """Returns the RAM disk to use: /dev/shm, else the one with most room; None where there is none.

    Changes nothing.
    """
    disks = filter(None, map(_examine, _mounts()))
    return max(disks, key=lambda tmpfs: (tmpfs.path == PREFERRED, tmpfs.free_bytes), default=None)


def is_in_ram(path: Path) -> bool:
    """Returns whether `path` lies on a RAM disk."""
    real = path.resolve()
    mounts = {Path(m.mountpoint): m.fstype for m in psutil.disk_partitions(all=True)}
    nearest = next((mounts[p] for p in (real, *real.parents) if p in mounts), "")
    return nearest in FSTYPES


def own_directory(tmpfs: Tmpfs) -> Path:
    """Returns the path of this user's directory on the RAM disk, which may not exist yet.

    Raises `DataError` if there is something else at that path: any user may write to /dev/shm, and
    a link or another user's directory with this name must not be used.
    """
    path = tmpfs.path / f"vitprof-{os.getuid()}"
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return path
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise DataError(
            f"{path} is not a directory of this user; remove it, or choose another location"
        )
    return path


def ram_disk(needed_bytes: int) -> Tmpfs:
    """Returns a RAM disk with room for `needed_bytes`.

    Raises `DataError` where there is none, or too little room.
    """
    tmpfs = find_tmpfs()
    if tmpfs is None:
        raise DataError(
            "no RAM disk (tmpfs) that can be written to was found here; choose another location"
        )
    if needed_bytes > tmpfs.free_bytes:
        raise DataError(
            f"the RAM disk {tmpfs.path} is too small: the storage needs {size(needed_bytes)} and there is room for "
            f"{size(tmpfs.free_bytes)}, with some kept free for shared memory; choose another location or fewer images"
        )
    return tmpfs


def _mounts() -> list[Path]:
    mounts = [Path(m.mountpoint) for m in psutil.disk_partitions(all=True) if m.fstype in FSTYPES]
    return [
        m
        for m in mounts
        if m == PREFERRED or not any(m.is_relative_to(system) for system in SYSTEM)
    ]


def _examine(mount: Path) -> Tmpfs | None:
    try:
        facts = os.statvfs(mount)
    except OSError:
        return None
    if facts.f_flag & os.ST_RDONLY or not os.access(mount, os.W_OK | os.X_OK):
        return None
    total = facts.f_blocks * facts.f_frsize
    free = facts.f_bavail * facts.f_frsize
    in_ram = psutil.virtual_memory()
    # ramfs, and tmpfs without a limit, report nothing: they take RAM until there is none left.
    if not total:
        total = in_ram.total
        free = in_ram.available
    kept_free = max(LEAST_ROOM, int(LEAST_SHARE * total))
    return Tmpfs(mount, max(0, min(free, in_ram.available) - kept_free))
