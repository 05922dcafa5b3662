"""The slow drives that can be imitated, with their bandwidth and the time to open a file."""

from __future__ import annotations

from dataclasses import dataclass

from vitprof.config.run_config import RunConfig


@dataclass(frozen=True)
class SlowDrive:
    """The speed of a slow drive."""

    mb_s: float
    """Bandwidth in MB/s (10^6 bytes), shared by all readers."""
    latency_ms: float
    """Time to open a file and get its first byte."""
    serial: bool
    """True: one file after another, as with a disk's head. False: readers wait independently, as on a network."""


# network-drive: the article on a mounted network drive (`strategies.ARTICLE_DRIVE`). 24 min an epoch from the mounted
#   drive, 3 min from the local disk, 5,981 files: (24 - 3) * 60 s / 5,981 = 211 ms more for each file. The article
#   gives no bandwidth; 30 MB/s is assumed, at which a JPEG file of 100 KB takes 3.3 ms, and 207 ms are left for opening
#   it. This assumes readers that wait one after another, as in the article's notebook; several readers overlap, since
#   the time goes into round trips to the server.
# mechanical-disk: typical of 7,200 rpm: half a turn takes 60 s / 7,200 / 2 = 4.2 ms and an average seek 8 ms;
#   sequential reads reach 150 MB/s.
PRESETS: dict[str, SlowDrive] = {
    "network-drive": SlowDrive(30.0, 207.0, serial=False),
    "mechanical-disk": SlowDrive(150.0, 12.0, serial=True),
}


def slow_drive(config: RunConfig) -> SlowDrive:
    """Returns the drive that the resolved `config` asks for: its preset, with the values that `config` sets."""
    preset = PRESETS[config.slow_drive or "network-drive"]
    return SlowDrive(
        preset.mb_s if config.slow_mb_s is None else config.slow_mb_s,
        preset.latency_ms if config.slow_latency_ms is None else config.slow_latency_ms,
        preset.serial,
    )
