"""The slow drives that can be chosen by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitprof.config import RunConfig


@dataclass(frozen=True)
class SlowDrive:
    """The speed of a slow drive."""

    mb_s: float
    """Bandwidth in MB/s (10^6 bytes), shared by all readers."""
    latency_ms: float
    """Time to open a file and get its first byte."""
    serial: bool
    """True: one file after another, as with a disk's head. False: readers wait independently, as on a network."""

    def files_on_the_way(self, file_bytes: float) -> float:
        """Returns how many files of that size its bandwidth delivers while one of them is opened."""
        return self.mb_s * 1e6 * self.latency_ms / 1e3 / max(file_bytes, 1.0)


# network-drive: an article on training from a mounted network drive. 24 min an epoch from the mounted
#   drive, 3 min from the local disk, 5,981 files: (24 - 3) * 60 s / 5,981 = 211 ms more for each file. The article
#   gives no bandwidth; 30 MB/s is assumed, at which a JPEG file of 100 KB takes 3.3 ms, and 207 ms are left for opening
#   it. This assumes readers that wait one after another, as in the article's notebook; several readers overlap, since
#   the time goes into round trips to the server.
# mechanical-disk: typical of 7,200 rpm: half a turn takes 60 s / 7,200 / 2 = 4.2 ms and an average seek 8 ms;
#   sequential reads reach 150 MB/s.
SLOW_DRIVES: dict[str, SlowDrive] = {
    "network-drive": SlowDrive(30.0, 207.0, serial=False),
    "mechanical-disk": SlowDrive(150.0, 12.0, serial=True),
}


def slow_drive(config: RunConfig) -> SlowDrive:
    """Returns the drive that the resolved `config` asks for: its preset, with the values that `config` sets."""
    drive = SLOW_DRIVES[config.slow_drive or "network-drive"]
    if config.slow_mb_s is not None:
        drive = replace(drive, mb_s=config.slow_mb_s)
    if config.slow_latency_ms is not None:
        drive = replace(drive, latency_ms=config.slow_latency_ms)
    return drive
