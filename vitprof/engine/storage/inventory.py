"""The manifest of a finished storage: what it was made of, its files, and whether they are still unchanged."""

import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.data.contract import fsync, made_again, reading
from vitprof.engine.data.datasets import MANIFEST, read_manifest
from vitprof.errors import DataError

FEW_FILES = 100
"""At most this many files are waited for one by one; 70,000 would take minutes: one call for the file system then."""


def identity(storage: str, version: int, info: DatasetInfo, source_root: Path) -> dict[str, Any]:
    """Returns the identity of a storage, with the maker from the data set's manifest. Raises `DataError`."""
    manifest = read_manifest(source_root)
    if manifest is None:
        raise DataError(f"{source_root} is empty; {made_again(source_root)}")
    return {
        "storage": storage,
        "version": version,
        "dataset": info.name,
        "maker": manifest["maker"],
        "n": [info.n_train, info.n_test],
        "shape": [info.image_size, info.image_size, info.channels],
    }


def write_manifest(directory: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Adds the files in `directory` and their room to `facts`, writes the manifest and returns it. Raises `OSError`."""
    files, folders = _files(directory)
    facts = facts | {"files": files, "folders": folders, "size_bytes": allocated_bytes(directory)}
    (directory / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def check(root: Path, manifest: dict[str, Any]) -> None:
    """Compares what is in `root` with its manifest. Raises a `DataError` that names the first file that differs."""
    with reading(root):
        files, folders = _files(root)
    remedy = made_again(root)
    for name, size in manifest["files"].items():
        if name not in files:
            raise DataError(f"{root / name} is missing; {remedy}")
        if files[name] != size:
            raise DataError(f"{root / name} is damaged ({files[name]:,} bytes instead of {size:,}); {remedy}")
    for name, n in manifest["folders"].items():
        if (there := folders.get(name, 0)) < n:
            raise DataError(f"{root / name} is damaged ({there:,} files instead of {n:,}); {remedy}")


def allocated_bytes(root: Path) -> int:
    """Returns the bytes of the blocks that the files under `root` take on disk. Raises `DataError`."""
    with reading(root):
        return sum(os.lstat(f"{top}/{name}").st_blocks * 512 for top, _, names in _walk(root) for name in names)


def to_disk(directory: Path) -> None:
    """Waits until the files under `directory`, and the directories, are on the disk. Raises `OSError`."""
    found = list(_walk(directory))
    if sum(len(names) for _, _, names in found) > FEW_FILES and _syncfs(directory):
        return
    for top, _, names in reversed(found):
        for path in (*(Path(top, name) for name in names), Path(top)):
            fsync(path)


def _syncfs(directory: Path) -> bool:
    """Waits for the whole file system of `directory`. Returns False where the system cannot (only Linux can)."""
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:
        return False
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
    return True


def _files(root: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the size of each file in `root` but the manifest, and the number of entries in each folder below it."""
    (_, _, names), *below = _walk(root)
    files = {name: (root / name).stat().st_size for name in names if name != MANIFEST}
    return files, {f"{os.path.relpath(top, root)}/": len(inside) + len(names) for top, inside, names in below}


def _walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Returns what `os.walk` does, which here raises `OSError`."""

    def fail(error: OSError) -> None:
        raise error

    return os.walk(root, onerror=fail)
