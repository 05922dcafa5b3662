"""What the null device knows of its work: the memory that its processes share, and the work of this one."""

import ctypes
import mmap
import os
import time

import numpy as np

CARDS = 8
SLOT = np.dtype(
    [
        ("pid", "i4"),
        ("", "i4"),
        ("memory", "u8", CARDS),
        ("busy", "u8", CARDS),
        ("until", "u8", CARDS),
    ]
)
"""One process in the memory that processes with the device share: its id, memory in use, time with work until
`until`; for each card, times in ns. See `core.h`."""


class Busy:
    """What the device itself knows of its work, of all processes."""

    def __init__(self) -> None:
        with open(os.environ["NULLCUDA_SHM"], "rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._slots = np.frombuffer(self._memory, SLOT)

    def _of(self, name: str, card: int) -> np.ndarray:
        return self._slots[name][self._slots["pid"] > 0, card].astype(np.int64)

    def seconds(self, card: int = 0) -> float:
        """Returns for how long a card had work until now. It is read in 20 us: between two clocks."""
        ahead_ns = np.maximum(0, self._of("until", card) - time.monotonic_ns())
        return float((self._of("busy", card) - ahead_ns).sum()) / 1e9

    def memory_bytes(self, card: int = 0) -> int:
        """Returns the memory in use on a card."""
        return int(self._of("memory", card).sum())


def spans() -> np.ndarray:
    """Returns a row for each piece of this process's work: when it was queued, began and ended (s), and whether it was
    a kernel; (n, 4) float64."""
    first = ctypes.c_void_p()
    n = ctypes.CDLL(None).nc_spans(ctypes.byref(first))
    rows = (
        np.ctypeslib.as_array(ctypes.cast(first, ctypes.POINTER(ctypes.c_uint64)), (n, 4))
        if n
        else np.zeros((0, 4))
    )
    return rows * [1e-9, 1e-9, 1e-9, 1.0]
