"""The system's page cache: measures how much of some files is in it, reads files into it, or drops
them from it.

Cold and warm reads are different experiments (cold ones were measured to have 0.07 to 0.22 of the
speed), so a run records which it was.
"""

import ctypes
import math
import mmap
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from vitprof.datasets.files import (
    OnProgress,
    Stop,
    never,
    reading,
    report,
    silent,
)
from vitprof.engine.locations.copying import BLOCK_BYTES, walk
from vitprof.errors import DataError
from vitprof.formats import percent
from vitprof.telemetry.tmpfs import is_in_ram

MOST_FILES_EXAMINED = 2000
"""Most files that are examined; if there are more, evenly spaced ones are."""
STILL_CACHED = 0.03
"""Share that may stay cached after `drop`: pages being read or written at that moment."""
ACTIVITY = "the page cache was being set up"


def set_page_cache(
    directory: Path,
    wanted: str,
    progress: OnProgress,
    stop: Stop,
    *,
    skip_unreadable: bool = False,
) -> float:
    """Brings the files under `directory` into the state `wanted`: "as-is", "warm" or "cold".

    Returns the share of their bytes in the page cache afterwards, 0..1; NaN where it is unknown.
    Call it before opening a storage: pages mapped into a process cannot be dropped.
    `skip_unreadable`: as of `walk`. Raises `DataError` and `JobStopped`.
    """
    found = walk(directory, skip_unreadable=skip_unreadable)
    paths = [directory / name for name, _ in found]
    if wanted == "cold":
        return drop(paths, progress, stop)
    if wanted == "warm":
        warm(paths, progress, stop)
    return cached_fraction(paths)


def cached_fraction(paths: Iterable[Path]) -> float:
    """Returns the share of the bytes of `paths` that the page cache holds, 0..1, from mincore.

    At most `MOST_FILES_EXAMINED` files are examined. NaN where the system cannot tell: no mincore, or
    files of other users (for those Linux reports every page as cached). Files that cannot be mapped
    do not count; raises `DataError` for one whose size cannot be read.
    """
    every = [path for path in paths if _bytes(path)]
    n_examined = min(len(every), MOST_FILES_EXAMINED)
    chosen = [every[i] for i in np.linspace(0, len(every) - 1, n_examined).astype(int)]
    mincore = _mincore()
    if mincore is None or not chosen:
        return math.nan
    n_cached = 0
    n_pages = 0
    for path in chosen:
        try:
            counts = _cached_pages(path, mincore)
        except DataError:
            # Reading it raises the error; here it just does not count.
            continue
        if counts is None:
            return math.nan
        cached, pages = counts
        n_cached += cached
        n_pages += pages
    return n_cached / n_pages if n_pages else math.nan


def drop(paths: Sequence[Path], progress: OnProgress = silent, stop: Stop = never) -> float:
    """Drops `paths` from the page cache.

    Returns the share that is still in it by mincore, at most `STILL_CACHED`.

    Each file is written out first (fsync): only clean pages can be dropped. Raises `DataError` if
    the files cannot be dropped (the system has no such call, a RAM disk, a process has them mapped)
    or it cannot be told whether they were, and `JobStopped`.
    """
    if not hasattr(os, "posix_fadvise") or _mincore() is None:
        raise DataError(
            f"the page cache cannot be dropped on {sys.platform}; choose page_cache as-is or warm"
        )
    if paths and is_in_ram(paths[0]):
        raise DataError(
            f"{paths[0]} is on a RAM disk: it cannot be dropped from memory; choose page_cache as-is"
        )
    cached = math.nan
    # Twice, since pages that the system is moving between its lists survive the first time.
    for _ in range(2):
        for i, path in enumerate(paths):
            report(progress, stop, i / len(paths), "dropping files from the page cache", ACTIVITY)
            _drop(path)
        cached = cached_fraction(paths)
        if not cached > STILL_CACHED:
            break
    if cached > STILL_CACHED:
        raise DataError(
            f"{percent(cached)} of {os.path.commonpath(paths)} stay in the page cache; end the process that has these "
            "files mapped, or choose page_cache as-is"
        )
    if math.isnan(cached) and any(_bytes(path) for path in paths):
        raise DataError(
            f"cannot tell whether {os.path.commonpath(paths)} left the page cache (it belongs to another user); "
            "choose page_cache as-is"
        )
    return cached


def warm(paths: Sequence[Path], progress: OnProgress = silent, stop: Stop = never) -> None:
    """Reads `paths` from beginning to end, so that the system caches as much of them as it has room
    for.

    Raises a `DataError` that names a file that cannot be read, and `JobStopped`.
    """
    buffer = memoryview(bytearray(BLOCK_BYTES))
    total = sum(_bytes(path) for path in paths)
    done = 0
    for path in paths:
        with reading(path), path.open("rb", buffering=0) as file:
            while n := file.readinto(buffer):
                done += n
                report(progress, stop, done / total, "reading files into the page cache", ACTIVITY)


def _bytes(path: Path) -> int:
    with reading(path):
        return path.stat().st_size


def _drop(path: Path) -> None:
    with reading(path), path.open("rb", buffering=0) as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _mincore() -> "ctypes._FuncPointer | None":
    """Returns Linux's mincore; None on other systems, where its answer means something else."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return function


def _cached_pages(path: Path, mincore: "ctypes._FuncPointer") -> tuple[int, int] | None:
    """Returns (cached, all) pages of a file; None where the system does not tell."""
    with reading(path), path.open("rb", buffering=0) as file:
        facts = os.fstat(file.fileno())
        # Linux tells the truth only to the owner and users with write access (mm/mincore.c,
        # can_do_mincore).
        may_write = os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        if facts.st_uid != os.geteuid() and not may_write:
            return None
        if not facts.st_size:
            return 0, 0
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            state = np.empty(math.ceil(len(view) / mmap.PAGESIZE), np.uint8)
            failed = mincore(view.ctypes.data, len(view), state.ctypes.data)
            # A mapping with a view on it cannot be closed.
            del view
    if failed:
        return None
    # Of each page's byte the lowest bit counts (mincore(2)).
    return int(np.count_nonzero(state & 1)), len(state)
