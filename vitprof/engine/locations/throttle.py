"""A simulated drive, slower than the one that holds the files: a bandwidth, and a latency for each
file opened.
"""

import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from vitprof.config.drives import SlowDrive
from vitprof.datasets.files import Stop, writing
from vitprof.errors import DataError
from vitprof.formats import number

DRIVE_STATE = struct.Struct("dd")
"""When the drive is free again (s, monotonic clock), and whether it has been closed (0 or 1)."""
LONGEST_SLEEP_S = 0.1
"""Longest sleep between two checks whether the bytes are still wanted."""
BURST_S = 1e-3
"""How far (s) the drive may run behind its readers.

A sleep ends 0.05 to 1 ms late (timer slack and scheduler). That loss may be made up; a real burst
allowance would give some bytes for free to every reader that computes between its reads."""


def describe(drive: SlowDrive) -> str:
    """Returns a description of the drive for the user: "throttled to 30 MB/s and 207 ms for each
    file".
    """
    speed = number(drive.mb_s, "MB/s")
    words = f"throttled to {speed} and {number(drive.latency_ms, 'ms')} for each file"
    if drive.serial:
        words += ", one after another"
    return words


class TokenBucket:
    """Bandwidth and latency shared by all processes and threads that use it, however they were
    started.

    Its state is in a small file, locked with flock while it is read or changed. So nothing has to
    be inherited, and a killed process releases the lock. The file is opened anew for each change,
    as flock locks open files, which threads would share.

    Implements `vitprof.engine.storage.contract.Throttle`. The clock must be one that all processes
    share (CLOCK_MONOTONIC). Raises `DataError` if the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        drive: SlowDrive,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self.drive = drive
        self._clock = clock
        self._sleep = sleep
        with writing(path, "make it writable, or choose another location"):
            path.touch()

    def wait(self, n_bytes: int, n_files: int, stop: Stop | None = None) -> None:
        """Returns when the drive would have delivered `n_bytes` from `n_files` freshly opened
        files.

        Returns sooner if `stop()` turns true or the bucket is closed: then the bytes are no longer
        needed. Raises `DataError` if the state file cannot be used.
        """
        due = self._reserve(n_bytes, n_files)
        while (remaining_s := due - self._clock()) > 0:
            if remaining_s > LONGEST_SLEEP_S:
                if stop is not None and stop():
                    return
                if self._is_closed():
                    return
            self._sleep(min(remaining_s, LONGEST_SLEEP_S))

    def close(self) -> None:
        """Ends all waits, in this and other processes. Nothing is held back afterwards."""
        self._change(lambda free, closed: (free, 1.0))

    def _reserve(self, n_bytes: int, n_files: int) -> float:
        """Reserves the next free time of the drive. Returns when these bytes have been delivered."""
        now = self._clock()
        transfer = n_bytes / (self.drive.mb_s * 1e6)
        opening = n_files * self.drive.latency_ms / 1e3
        busy = transfer
        if self.drive.serial:
            busy += opening

        def take(free: float, closed: float) -> tuple[float, float]:
            if closed:
                return free, closed
            return max(now - BURST_S, free) + busy, closed

        free, closed = self._change(take)
        if closed:
            return now
        if self.drive.serial:
            return free
        # The latency passes while the drive serves other readers, so the longer of the two decides.
        return max(free, now + opening + transfer)

    def _is_closed(self) -> bool:
        return bool(self._change(lambda free, closed: (free, closed))[1])

    def _change(self, update: Callable[[float, float], tuple[float, float]]) -> tuple[float, float]:
        """Changes (when the drive is free again, whether it is closed) under the lock.

        Returns the new values.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                raw = os.pread(descriptor, DRIVE_STATE.size, 0)
                before = (0.0, 0.0)
                if len(raw) == DRIVE_STATE.size:
                    before = DRIVE_STATE.unpack(raw)
                after = update(*before)
                if after != before:
                    os.pwrite(descriptor, DRIVE_STATE.pack(*after), 0)
            finally:
                # Closing does not unlock it where a child was forked meanwhile.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)
        except FileNotFoundError:
            # It was removed with the location: closed.
            return 0.0, 1.0
        except OSError as error:
            raise DataError(
                f"the slow drive's state {self.path} cannot be used ({error.strerror or error}); start the run again"
            ) from error
        return after
