"""What shared memory takes."""

import math
import os
from pathlib import Path
from typing import NamedTuple

SHARED_MEMORY = Path("/dev/shm")
"""Where the segments of shared memory are by which batches cross from workers."""


class SharedMemory(NamedTuple):
    """The use of /dev/shm by all programs (bytes); NaN where there is none, or it has no limit."""

    used_bytes: float
    free_bytes: float


def shared_memory(path: Path = SHARED_MEMORY) -> SharedMemory:
    """Returns the use of /dev/shm now."""
    try:
        facts = os.statvfs(path)
    except (OSError, AttributeError):  # Windows has no statvfs
        return SharedMemory(math.nan, math.nan)
    if not facts.f_blocks:
        return SharedMemory(math.nan, math.nan)
    used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return SharedMemory(float(used), float(facts.f_bavail * facts.f_frsize))
