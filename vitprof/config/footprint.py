"""What a strategy takes of a machine, worked out before anything is made: disk, memory, and what is prepared already.

Estimates for pages and messages. What a storage really takes is measured when it is prepared and stands in its
manifest, which is read here where there is one. Nothing here imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from vitprof import home
from vitprof.config.catalog import DatasetInfo
from vitprof.config.parts import STORAGES, Combination, prepared_as

BLOCK = 4096
"""What a file takes at least, on most file systems; also a page of an LMDB database."""
JPEG_BYTES = 105_000
"""A photo at quality 90, on average (`vitprof.config.catalog`)."""
PNG_BYTES = 350
"""A digit as PNG: always one block."""
PT_OVERHEAD = 1_500
"""The zip archive that torch.save writes around a tensor."""


@dataclass(frozen=True)
class PreparedStorage:
    """A storage that was prepared earlier."""

    size_bytes: int
    """Room it takes on disk."""
    prepare_s: float
    """How long making it took."""


@dataclass(frozen=True)
class Footprint:
    """What running one combination of parts on one data set takes, in bytes."""

    source_bytes: int
    """The data set's own files on disk, which every strategy needs."""
    prepared_as: str | None
    """The storage that is made from them first; None where they are read as they are."""
    prepared_bytes: int
    """Disk for that storage: measured if it is there already, else estimated."""
    made: PreparedStorage | None
    """That storage, if it is there already."""
    ram_bytes: int
    """RAM for what is kept in memory as a whole: the set, or its copy on a RAM disk. Not: workers and batches."""
    ram_disk_bytes: int
    """The part of `ram_bytes` that lies in a tmpfs."""
    staged_bytes: int
    """Disk for the copy that location "staged" makes for each run."""
    device_bytes: int
    """Device memory for the set, where it is resident."""

    @property
    def disk_bytes(self) -> int:
        """Disk for storage and staged copy together, without the data set's own files."""
        return self.prepared_bytes + self.staged_bytes


def pixel_bytes(info: DatasetInfo) -> int:
    """Returns the bytes of all images, training and test, as uint8."""
    return (info.n_train + info.n_test) * info.image_size**2 * info.channels


def source_bytes(info: DatasetInfo) -> int:
    """Returns the bytes of the data set's own files, about."""
    return pixel_bytes(info) if info.kind == "idx" else (info.n_train + info.n_test) * JPEG_BYTES


def _blocks(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK) * BLOCK


def storage_bytes(storage: str, info: DatasetInfo) -> int:
    """Disk that `storage` takes once it is made, about; 0 where the data set's own files are read."""
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return 0
    n, pixels = info.n_train + info.n_test, info.image_size**2 * info.channels
    if stored_as == "raw-files":
        return n * _blocks(pixels)
    if stored_as == "pt":
        return n * _blocks(pixels + PT_OVERHEAD)
    if stored_as == "lmdb":
        # The leaves of a B+ tree filled in order hold as many entries as fit a page.
        return n * (BLOCK // max(1, BLOCK // (pixels + 32)))
    if STORAGES[stored_as].form == "encoded":
        return n * (_blocks(PNG_BYTES) if info.kind == "idx" else JPEG_BYTES)
    return n * pixels


def made(storage: str, info: DatasetInfo) -> PreparedStorage | None:
    """Returns what is known of `storage` if it has been made: from the manifest that `vitprof.engine.storage.prepare`
    writes.

    Whether it is still up to date is found out when it is used.
    """
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return None
    path = home.home() / "prepared" / info.directory / stored_as / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return PreparedStorage(int(manifest["size_bytes"]), float(manifest["prepare_s"]))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not readable: then it is made again
        return None


def footprint(parts: Combination, info: DatasetInfo, cache_mb: float | None = None) -> Footprint:
    """Returns what loading `info` through `parts` takes, with a cache of part of it where a budget is given."""
    there = made(parts.storage, info)
    prepared = there.size_bytes if there else storage_bytes(parts.storage, info)
    read = prepared or source_bytes(info)
    pixels = pixel_bytes(info)
    # "idx" is in memory too: torchvision reads the whole file when it is constructed (REFERENCE.md section 1).
    in_memory = {"memory": pixels, "memory-float": 4 * pixels, "pt-whole": pixels, "idx": pixels}.get(parts.storage, 0)
    resident = parts.transfer == "resident"
    cache = min(cache_mb * 1e6, read) if cache_mb else 0
    ram_disk = read if parts.location == "ram-disk" else 0
    return Footprint(
        source_bytes=source_bytes(info),
        prepared_as=prepared_as(parts.storage, info.kind),
        prepared_bytes=prepared,
        made=there,
        ram_bytes=in_memory + ram_disk + round(cache),
        ram_disk_bytes=ram_disk,
        staged_bytes=read if parts.location == "staged" else 0,
        device_bytes=pixels if resident else 0,
    )
