"""A word of memory that says since when the script waits for a batch, for the program that records it.

To write it takes 40 ns, and no call of the system. Who reads it needs nothing of the script: its
thread that sends events may not come to run while the script waits.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import MutableSequence

from vitprof.descriptors import FIRST_FREE
from vitprof.watch.events import PENDING_MARK


class PendingWait:
    """Memory without a file. The reader opens it as `/proc/PID/fd/N`, so that nothing is left behind.

    Raises `OSError` or `AttributeError` where the system has no such memory.
    """

    def __init__(self) -> None:
        number = os.memfd_create("vitprof", os.MFD_CLOEXEC)
        try:
            self.descriptor = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
        finally:
            os.close(number)
        os.ftruncate(self.descriptor, mmap.PAGESIZE)
        words = memoryview(mmap.mmap(self.descriptor, mmap.PAGESIZE)).cast("d")
        words[1] = PENDING_MARK
        self.words: MutableSequence[float] = words  # type: ignore[assignment]
        """The first one is when the batch was requested (s, the monotonic clock); 0 while the script waits
        for none."""
