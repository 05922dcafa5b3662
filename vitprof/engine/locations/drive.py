"""How fast the drive behind a job's files reads, past the page cache."""

import contextlib
import math
import mmap
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vitprof.engine.locations.copying import walk

BLOCK = 1 << 20
"""Bytes of a read at most: larger ones are hardly faster on any drive."""
READERS = 4
"""Reads under way at once, as a drive needs several to be fast and a loader has one for each
worker."""
LASTS_S = 0.1
"""Seconds at most that this adds to the start of a job."""
MOST_FILES = 500
"""Files that are read at most; of more, evenly spaced ones."""


def read_rate(
    root: Path,
    *,
    lasts_s: float = LASTS_S,
    skip_unreadable: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the bytes/s with which files below `root` are read by direct reads in random order.

    It takes `lasts_s` seconds. `skip_unreadable`: as of `walk`. NaN where their file system has no
    such reads, or there is too little to read.
    """
    found = walk(root, skip_unreadable=skip_unreadable)
    files = [(root / name, n_bytes) for name, n_bytes in found if n_bytes]
    every = max(1, len(files) // MOST_FILES)
    files = files[::every]
    places = [(path, at) for path, n_bytes in files for at in range(0, n_bytes, BLOCK)]
    random.Random(0).shuffle(places)
    begun = clock()
    until = begun + lasts_s
    # The readers share it: each takes the next place.
    remaining = iter(places)

    def read() -> int:
        done = 0
        # A direct read's memory begins at a page.
        with mmap.mmap(-1, BLOCK) as buffer:
            for path, at in remaining:
                if clock() >= until:
                    break
                file = os.open(path, os.O_RDONLY | os.O_DIRECT)
                try:
                    done += os.preadv(file, [buffer], at)
                finally:
                    os.close(file)
        return done

    with (
        contextlib.suppress(OSError, AttributeError),
        ThreadPoolExecutor(READERS, "vitprof-drive") as pool,
    ):
        readers = [pool.submit(read) for _ in range(READERS)]
        total = sum(reader.result() for reader in readers)
        if total > BLOCK:
            return total / (clock() - begun)
    return math.nan
