"""The HDF5 file of a data set: making its structure so that no kill can damage it, and opening it with checks.

Structure (headers, chunk index, labels) is written by the HDF5 library in moments; images are then written to the
places in the file that were allocated for them, past the library. A process that dies in between leaves a file that
can be opened. For the moments there is an undo file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t
from numpy.typing import NDArray

from vitprof.errors import DataError

FILE = "data.h5"


@dataclass(frozen=True)
class Bytes:
    """A uint8 data set to be allocated."""

    shape: tuple[int, ...]
    chunk: int | None = None
    """Rows of a chunk; None: in one piece."""


@dataclass(frozen=True)
class Extents:
    """Where the rows of a uint8 data set lie in the file, row after row in each piece."""

    offsets: list[int]
    """Position of each piece in the file, in bytes."""
    rows: int
    """Rows of a piece; the last one's room may be larger than what it holds."""
    row_bytes: int

    def write(self, file: int, start: int, rows: NDArray[np.uint8]) -> None:
        """Write `rows` (n, ...), the first of which is row `start`, to the descriptor `file`."""
        flat = np.ascontiguousarray(rows).reshape(-1).data
        done = 0
        while done < len(rows):
            piece, inside = divmod(start + done, self.rows)
            n = min(self.rows - inside, len(rows) - done)
            write_at(
                file,
                flat[done * self.row_bytes : (done + n) * self.row_bytes],
                self.offsets[piece] + inside * self.row_bytes,
            )
            done += n


def write_at(file: int, data: memoryview, position: int) -> None:
    """Write all of `data`. Raises `OSError`, also where a mapped file would end the process (disk full)."""
    while data:
        n = os.pwrite(file, data, position)
        data, position = data[n:], position + n


def extents_of(dataset: Any) -> Extents:
    """Where the rows of an h5py data set of one byte a value lie."""
    row_bytes = int(np.prod(dataset.shape[1:], dtype=np.int64))
    if dataset.chunks is None:
        return Extents([dataset.id.get_offset()], max(len(dataset), 1), row_bytes)
    rows = dataset.chunks[0]
    inner = (0,) * (dataset.ndim - 1)
    starts = range(0, len(dataset), rows)
    offsets = [dataset.id.get_chunk_info_by_coord((start, *inner)).byte_offset for start in starts]
    return Extents(offsets, rows, row_bytes)


def add_data_sets(path: Path, images: Mapping[str, Bytes], small: Mapping[str, NDArray[Any]]) -> bool:
    """Add data sets to the file at `path`, which is made if it is not there: all of them or, after a kill, none.

    Room for `images` is allocated, and their content left undefined; `small` is written. False if they were there.
    Raises `OSError`, `DataError` where the file is damaged.
    """
    undo = path.with_name(f"{path.name}.undo.npz")
    if undo.exists():
        _restore(path, undo)
    if not path.exists():
        new = path.with_name(f"{path.name}.new")
        _write(new, "w", images, small)
        new.replace(path)
        return True
    with opened(path) as file:
        if all(name in file for name in (*images, *small)):
            return False
    _save(path, undo)
    _write(path, "r+", images, small)
    undo.unlink()
    return True


def _write(path: Path, mode: str, images: Mapping[str, Bytes], small: Mapping[str, NDArray[Any]]) -> None:
    try:
        with h5py.File(path, mode, locking=False) as file:
            _create(file, images, small)
    except (OSError, RuntimeError) as error:  # h5py's own text has many lines
        number = getattr(error, "errno", None) or errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error


def _create(file: Any, images: Mapping[str, Bytes], small: Mapping[str, NDArray[Any]]) -> None:
    for name, wanted in images.items():
        plist = h5p.create(h5p.DATASET_CREATE)
        plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5d.FILL_TIME_NEVER)
        if wanted.chunk is not None:
            plist.set_chunk((min(wanted.chunk, wanted.shape[0]), *wanted.shape[1:]))
        h5d.create(file.id, name.encode(), h5t.STD_U8LE, h5s.create_simple(wanted.shape), plist)
    for name, values in small.items():
        file.create_dataset(name, data=values)


def _save(path: Path, undo: Path) -> None:
    """Keep everything in the file that is not the content of images: what the library may change."""
    with opened(path) as file:
        found = [extents_of(file[name]) for name in file if file[name].dtype == np.uint8 and file[name].size]
    pieces = sorted((o, o + e.rows * e.row_bytes) for e in found for o in e.offsets)
    size = path.stat().st_size
    kept: dict[str, Any] = {}
    end = 0
    with path.open("rb") as raw:
        for start, stop in [*pieces, (size, size)]:
            if start > end:
                raw.seek(end)
                kept[str(end)] = np.frombuffer(raw.read(start - end), np.uint8)
            end = max(end, stop)
    new = undo.with_name(f"{undo.name}.new")
    with new.open("wb") as raw:
        np.savez(raw, size=np.int64(size), **kept)
        raw.flush()
        os.fsync(raw.fileno())
    new.replace(undo)


def _restore(path: Path, undo: Path) -> None:
    with np.load(undo, allow_pickle=False) as kept, path.open("r+b") as raw:
        for position in kept.files:
            if position != "size":
                write_at(raw.fileno(), memoryview(kept[position]), int(position))
        raw.truncate(int(kept["size"]))
        os.fsync(raw.fileno())
    undo.unlink()


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The h5py file at `path`, for reading. What fails inside becomes a `DataError` that names the file."""
    try:
        with open_file(path) as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise unusable(path, str(error)) from error


def open_file(path: Path) -> Any:
    """The h5py file at `path`, for reading. Raises `DataError`."""
    try:
        # No locks: finished files are only read, and many network drives have none. No chunk cache: nothing is
        # compressed, so rows go straight from the file into the batch.
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except FileNotFoundError:
        raise unusable(path, "it is missing") from None
    except OSError as error:
        raise unusable(path, str(error)) from error


def image_set(file: Any, path: Path, name: str, shape: tuple[int, ...], *, chunked: bool) -> Any:
    """The data set `name` after a look at what it is. Raises `DataError` where it is not uint8 of `shape`."""
    found = array(file, path, name, np.dtype(np.uint8), shape)
    plain = found.id.get_create_plist()
    layout = {h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked"}.get(plain.get_layout(), "of another layout")
    if plain.get_external_count():
        layout = "in another file"
    if layout != ("chunked" if chunked else "contiguous"):
        raise unusable(path, f"{name} is {layout}, not {'chunked' if chunked else 'contiguous'}")
    if not chunked and found.size:
        offset = found.id.get_offset()
        if offset is None or offset + found.size > path.stat().st_size:
            raise unusable(path, f"{name} reaches beyond the end of the file")
    return found


def array(file: Any, path: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """The data set `name`. Raises `DataError` unless it is there with that dtype and shape."""
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise unusable(path, f"it holds no data set {name}")
    if found.dtype != dtype or found.shape != shape:
        raise unusable(path, f"{name} is {found.dtype} {found.shape}, not {dtype} {shape}")
    return found


def labels_of(file: Any, path: Path, split: str) -> NDArray[np.int64]:
    """The labels (n,) int64 of a split. Raises `DataError`."""
    found = file.get(f"Y_{split}")
    if not isinstance(found, h5py.Dataset):
        raise unusable(path, f"it holds no data set Y_{split}")
    if found.ndim != 1 or found.dtype != np.int64:
        raise unusable(path, f"Y_{split} is {found.dtype} {found.shape}, not int64 with one axis")
    labels: NDArray[np.int64] = found[:]
    return labels


def unusable(path: Path, why: str) -> DataError:
    """The error that says why the file cannot be used, and what to do."""
    reason = " ".join(why.split())
    return DataError(f"{path} cannot be read ({reason}); delete {path.parent} and it is made again")
