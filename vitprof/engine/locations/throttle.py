"""A simulated drive, slower than the one that holds the files: a bandwidth, and a latency for each file opened."""

import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from vitprof.config.catalog import SlowDrive
from vitprof.engine.data.contract import Stop, writing
from vitprof.errors import DataError
from vitprof.formats import number

DRIVE_STATE = struct.Struct("dd")
"""When the drive is free again (s, monotonic clock), and whether it has been closed (0 or 1)."""
LONGEST_SLEEP_S = 0.1
"""Longest sleep between two checks whether the bytes are still wanted."""
# A sleep ends 0.05-1 ms late (timer slack and scheduler). That loss may be made up; a real burst allowance would give
# some bytes for free to every reader that computes between its reads.
BURST_S = 1e-3


def describe(drive: SlowDrive) -> str:
    """Returns a description of the drive for the user: "throttled to 30 MB/s and 207 ms for each file"."""
    seeks = ", one after another" if drive.serial else ""
    return f"throttled to {number(drive.mb_s, 'MB/s')} and {number(drive.latency_ms, 'ms')} for each file{seeks}"


class TokenBucket:
    """Bandwidth and latency shared by all processes and threads that use it: a `Throttle`. Its state is in a small
    file, opened anew for each change, as flock locks open files: a killed process releases it. Raises `DataError`.
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
        """Returns when the drive would have delivered this, sooner if `stop()` turns true. Raises `DataError`."""
        due = self._reserve(n_bytes, n_files)
        while (left := due - self._clock()) > 0:
            if left > LONGEST_SLEEP_S and ((stop is not None and stop()) or self._is_closed()):
                return
            self._sleep(min(left, LONGEST_SLEEP_S))

    def close(self) -> None:
        """Ends all waits, in this and other processes. Nothing is held back afterwards."""
        self._change(lambda free, closed: (free, 1.0))

    def _reserve(self, n_bytes: int, n_files: int) -> float:
        """Reserves the next free time of the drive. Returns when these bytes have been delivered."""
        now = self._clock()
        transfer = n_bytes / (self.drive.mb_s * 1e6)
        opening = n_files * self.drive.latency_ms / 1e3
        serial = self.drive.serial
        busy = transfer + opening if serial else transfer

        def take(free: float, closed: float) -> tuple[float, float]:
            return (free if closed else max(now - BURST_S, free) + busy), closed

        free, closed = self._change(take)
        if closed:
            return now
        # The latency passes while the drive serves other readers, so the longer of the two decides.
        return free if serial else max(free, now + opening + transfer)

    def _is_closed(self) -> bool:
        return bool(self._change(lambda free, closed: (free, closed))[1])

    def _change(self, update: Callable[[float, float], tuple[float, float]]) -> tuple[float, float]:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                raw = os.pread(descriptor, DRIVE_STATE.size, 0)
                before = DRIVE_STATE.unpack(raw) if len(raw) == DRIVE_STATE.size else (0.0, 0.0)
                after = update(*before)
                if after != before:
                    os.pwrite(descriptor, DRIVE_STATE.pack(*after), 0)
            finally:
                fcntl.flock(
                    descriptor, fcntl.LOCK_UN
                )  # closing does not, where a child was forked meanwhile
                os.close(descriptor)
        except FileNotFoundError:
            return 0.0, 1.0  # removed with the location: closed
        except OSError as error:
            raise DataError(
                f"the slow drive's state {self.path} cannot be used ({error.strerror or error}); start the run again"
            ) from error
        return after
