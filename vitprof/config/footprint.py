"""What a strategy needs of a machine, estimated before it runs: disk, memory, and what is prepared already.

The estimates are for pages and messages. The real size of a storage is measured when it is prepared and kept in its
manifest, which is used here if there is one. Nothing here imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from vitprof import home
from vitprof.config.catalog import DatasetInfo
from vitprof.config.parts import JPEG_BYTES, PNG_BYTES, STORAGES, Combination, blocks, prepared_as


@dataclass(frozen=True)
class PreparedStorage:
    """A storage that was prepared earlier."""

    size_bytes: int
    """Disk space that it takes."""
    prepare_s: float
    """Seconds that making it took."""


@dataclass(frozen=True)
class Footprint:
    """What running one combination of parts on one data set needs, in bytes."""

    source_bytes: int
    """Disk for the data set's own files, which every strategy needs."""
    prepared_as: str | None
    """The storage that is made from them first; None if they are read as they are."""
    prepared_bytes: int
    """Disk for that storage: measured if it exists already, else estimated."""
    made: PreparedStorage | None
    """That storage, if it exists already."""
    ram_bytes: int
    """RAM for data that is kept in memory: the set, its copy on a RAM disk, a cache. Without workers and batches."""
    ram_disk_bytes: int
    """The part of `ram_bytes` that is in a tmpfs."""
    staged_bytes: int
    """Disk for the copy that location "staged" makes for each run."""
    device_bytes: int
    """Device memory for the set if it is resident."""

    @property
    def disk_bytes(self) -> int:
        """Returns the disk space for storage and staged copy together, without the data set's own files."""
        return self.prepared_bytes + self.staged_bytes


def pixel_bytes(info: DatasetInfo) -> int:
    """Returns the bytes of all images, training and test, as uint8."""
    return (info.n_train + info.n_test) * info.image_size**2 * info.channels


def source_bytes(info: DatasetInfo) -> int:
    """Returns about how many bytes the data set's own files have."""
    return pixel_bytes(info) if info.kind == "idx" else (info.n_train + info.n_test) * JPEG_BYTES


def storage_bytes(storage: str, info: DatasetInfo) -> int:
    """Returns about how many bytes of disk `storage` takes once it is made; 0 if it reads the data set's own files."""
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return 0
    n, pixels = info.n_train + info.n_test, info.image_size**2 * info.channels
    part = STORAGES[stored_as]
    if part.form == "encoded":
        return n * (blocks(PNG_BYTES) if info.kind == "idx" else JPEG_BYTES)
    return n * part.sample_bytes(pixels)


def made(storage: str, info: DatasetInfo) -> PreparedStorage | None:
    """Returns size and preparation time of `storage` from the manifest that `vitprof.engine.storage.prepare` writes;
    None if it has not been made.

    Whether it is still up to date is checked only when it is used.
    """
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return None
    path = home.home() / "prepared" / info.directory / stored_as / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return PreparedStorage(int(manifest["size_bytes"]), float(manifest["prepare_s"]))
    except (OSError, ValueError, KeyError, TypeError):  # missing or not readable: it will be made again
        return None


def footprint(parts: Combination, info: DatasetInfo, cache_mb: float | None = None) -> Footprint:
    """Returns what loading `info` through `parts` needs, with a cache of `cache_mb` MB if that is given."""
    there = made(parts.storage, info)
    prepared = there.size_bytes if there else storage_bytes(parts.storage, info)
    read = prepared or source_bytes(info)
    pixels = pixel_bytes(info)
    in_memory = pixels * STORAGES[parts.storage].ram_bytes
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
