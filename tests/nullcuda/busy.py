"""The memory that processes with the null device share, as they leave it."""

import mmap
import os
import struct
import time
from collections.abc import Iterator

SLOTS, CARDS = 256, 8
SLOT = struct.Struct(f"i4x{3 * CARDS}Q")
"""One process in the memory that processes with the device share: its id, memory in use, time with work until
`busy_until`, `busy_until`; for each card, times in ns. See `core.h`."""


class Busy:
    """What the device itself knows of its work."""

    def __init__(self) -> None:
        with open(os.environ["NULLCUDA_SHM"], "rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def _processes(self) -> Iterator[list[int]]:
        for slot in range(SLOTS):
            pid, *figures = SLOT.unpack_from(self._memory, slot * SLOT.size)
            if pid:
                yield figures

    def seconds(self, card: int = 0) -> float:
        """Returns for how long a card had work until now, for all processes."""
        now = time.monotonic_ns()
        return sum(f[CARDS + card] - max(0, f[2 * CARDS + card] - now) for f in self._processes()) / 1e9

    def memory_bytes(self, card: int = 0) -> int:
        """Returns the memory in use on a card, by all processes."""
        return sum(figures[card] for figures in self._processes())
