"""A key for each sample in one LMDB file: raw pixels, or the bytes of a JPEG file.

Both splits are in `data.mdb`. Sample 12 of the training split has the key `train-00000012`, so that
the keys sort in the order of the samples; `meta-train` says how many there are. Finished files are
only read: without locks, and without the system's readahead, which would read pages that are not
needed (lmdb.readthedocs.io, `Environment`).
"""

import errno
import json
import os
import shutil
import struct
import weakref
from pathlib import Path
from typing import Any, NoReturn

import lmdb
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage import contract
from vitprof.errors import SampleError

# Layout of a meta page: lmdb's mdb.c, MDB_page and MDB_meta on a 64-bit machine. A page's header
# takes 16 bytes; then follow magic, version, address, map size, two MDB_db (the first one's first
# field is the page size), last page and transaction number.
_META = struct.Struct("=16xIIQQI44x48xQQ")
# Places of these in what `_META` unpacks.
_MAGIC_AT = 0
_PAGE_SIZE_AT = 4
_LAST_PAGE_AT = 5
_TRANSACTION_AT = 6
_MAGIC = 0xBEEFC0DE


class Shared:
    """An environment, and the storages that read it: py-lmdb refuses to open a file twice."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.readers: weakref.WeakSet[object] = weakref.WeakSet()


_shared: weakref.WeakValueDictionary[tuple[str, int], Shared] = weakref.WeakValueDictionary()
"""By path and generation of the process. Used while `Process.opening` is held."""


def _ensure_whole(path: Path) -> None:
    """Raises `DataError` unless this is an LMDB file of its full length.

    LMDB itself maps a file of any length: a read beyond its end would kill the process with SIGBUS.
    """
    try:
        with contract.reading(path), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = _META.unpack(file.read(_META.size))
            page_size = first[_PAGE_SIZE_AT]
            if first[_MAGIC_AT] != _MAGIC or not 256 <= page_size <= 65536:
                raise contract.unusable(path, "it is not an LMDB file")
            file.seek(page_size)
            second = _META.unpack(file.read(_META.size))
    except struct.error:
        raise contract.unusable(path, "it ends inside its header") from None
    # There are two meta pages, which transactions write in turns: that of the later one counts.
    latest = max(first, second, key=lambda meta: int(meta[_TRANSACTION_AT]))
    wanted = (latest[_LAST_PAGE_AT] + 1) * page_size
    if size < wanted:
        raise contract.unusable(path, f"{size:,} bytes long, and its header says {wanted:,}")


LMDB_FILE = "data.mdb"
FIRST_MAP_BYTES = 1 << 28
"""Size of the map at first, which is doubled when the file outgrows it.

The map takes no room on the disk."""


class Writer(contract.SplitWriter):
    """A writer that puts each chunk in a transaction of its own: after a kill a chunk is there, or
    it is not.
    """

    def __init__(self, directory: Path, split: contract.SplitFacts) -> None:
        self._path = directory / LMDB_FILE
        self._key = f"{split.name}-%08d".encode()
        try:
            # No lock file: `prepare` holds a lock of its own. No sync: it waits for the disk once,
            # at the end.
            self._env = lmdb.open(
                str(self._path), subdir=False, lock=False, sync=False, map_size=FIRST_MAP_BYTES
            )
        except lmdb.Error as error:
            raise _refused(self._path, error) from error
        meta = {"n": split.n, "shape": list(split.shape)}
        try:
            self._put([(f"meta-{split.name}".encode(), json.dumps(meta).encode())])
        except BaseException:
            self._env.close()
            raise

    def add(self, start: int, images: NDArray[np.uint8] | list[bytes]) -> None:
        values = [image if isinstance(image, bytes) else image.tobytes() for image in images]
        self._put([(self._key % (start + i), value) for i, value in enumerate(values)])

    def _put(self, items: list[tuple[bytes, bytes]]) -> None:
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    cursor = txn.cursor()
                    # Appended keys fill pages completely: the file is 1.05 times the pixels' size
                    # instead of 1.31.
                    beyond = not cursor.last() or cursor.key() < items[0][0]
                    cursor.putmulti(items, append=beyond)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.Error as error:
                n_bytes = sum(len(value) for _, value in items)
                raise _refused(self._path, error, n_bytes) from error

    def close(self) -> None:
        wanted = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        self._env.close()
        # Pages that a transaction took and gave back are never written, but readers require the
        # header's length.
        if self._path.stat().st_size < wanted:
            os.truncate(self._path, wanted)


def _refused(path: Path, error: Exception, n_bytes: int = 0) -> OSError:
    """Returns the system's error for one that LMDB raised while writing `n_bytes` to `path`."""
    # On a full disk LMDB writes what fits and then reports an "Input/output error".
    full = isinstance(error, lmdb.DiskError) or shutil.disk_usage(path.parent).free < n_bytes
    number = errno.ENOSPC if full else errno.EIO
    return OSError(number, str(error), str(path))


# Pages hold five images of 784 bytes: 1.05 times the pixels, and some more for the test split,
# whose keys come before those of the training split and so are not appended. Encoded files fill
# whole pages of 4 KiB.
PIXEL_FORMAT = contract.Format(1, "pixels", Writer, lambda info: contract.image_bytes(info) * 1.15)
ENCODED_FORMAT = contract.Format(1, "encoded", Writer, lambda info: 115_000)


class _Storage(contract.StoredSplit):
    """The common part of both forms: the file, the split's keys, and the environment of this
    process.
    """

    def __init__(self, info: DatasetInfo, place: contract.Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._key = f"{self._split}-%08d".encode()
        self._path = place.root / LMDB_FILE
        self.labels = contract.read_labels(place.root, train=train)
        try:
            self._check_meta()
        finally:
            # The process that reads, perhaps another one, opens it again.
            self.close()

    def _check_meta(self) -> None:
        """Raises `DataError` unless the file says that it holds as many samples of this shape as
        there are labels.
        """
        wanted = {"n": len(self.labels), "shape": list(self.shape)}
        try:
            with self._here().environment.begin() as txn:
                meta = txn.get(f"meta-{self._split}".encode())
            found = None
            if meta is not None:
                found = json.loads(meta)
        except (lmdb.Error, ValueError) as error:
            self._damaged(error)
        if found != wanted:
            what = f"has no key meta-{self._split}"
            if found:
                what = f"says {found}"
            raise self._unusable(f"{self._path} {what} where {wanted} is expected")

    def _open(self) -> Shared:
        key = os.path.realpath(self._path), contract.Process.generation
        shared = _shared.get(key)
        if shared is None or not shared.readers:
            for (path, _), inherited in list(_shared.items()):
                # After a fork, descriptor and map are this process's own copies.
                if path == key[0]:
                    inherited.environment.close()
            _ensure_whole(self._path)
            try:
                environment = lmdb.open(
                    str(self._path),
                    subdir=False,
                    readonly=True,
                    lock=False,
                    readahead=False,
                    meminit=False,
                )
            except lmdb.Error as error:
                raise contract.unusable(self._path, str(error)) from error
            shared = _shared[key] = Shared(environment)
        shared.readers.add(self)
        return shared

    def close(self) -> None:
        with contract.Process.opening:
            if self._opened is not None:
                self._opened.readers.discard(self)
                if not self._opened.readers:
                    self._opened.environment.close()
        super().close()

    def _damaged(self, error: Exception) -> NoReturn:
        raise self._unusable(f"{self._path} is damaged ({error})") from error

    def name_of(self, index: int) -> str:
        return f"{self._path}: key {(self._key % index).decode()}"


class PixelStorage(_Storage):
    """Pixels in LMDB. A batch is one transaction: a `get` for each key, one join of the values, one
    copy.
    """

    def __init__(self, info: DatasetInfo, place: contract.Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._n_bytes = contract.image_bytes(info)

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        out = self._room(indices, out)
        if not len(indices):
            return out
        self._place.reading(out.nbytes)
        key = self._key
        numbers = indices.tolist()
        try:
            with self._here().environment.begin(buffers=True) as txn:
                get = txn.get
                # Keys are made here and not kept: fetching 1,000 scattered objects from memory took
                # longer (0.069 of a C gather's speed instead of 0.086). cursor.getmulti was slower
                # still (0.019).
                values = [get(key % number) for number in numbers]
                try:
                    whole = set(map(len, values)) == {self._n_bytes}
                except TypeError:
                    # One is None: it has no length.
                    whole = False
                if not whole:
                    self._blame(numbers, values)
                # The buffers are valid only during the transaction.
                out.view(-1).numpy()[:] = np.frombuffer(b"".join(values), np.uint8)
        except lmdb.Error as error:
            self._damaged(error)
        return out

    def _blame(self, numbers: list[int], values: list[memoryview | None]) -> NoReturn:
        """Raises an error that names the first sample of the batch that is missing or of another
        length.
        """
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                raise self._unusable(f"{self.name_of(number)} is missing", SampleError)
            if len(value) != self._n_bytes:
                what = f"holds {len(value)} bytes, not {self._n_bytes}"
                raise self._unusable(f"{self.name_of(number)} {what}", SampleError)
        raise AssertionError("every value is right")


class EncodedStorage(_Storage):
    """Encoded images in LMDB: one `get` and one copy for each sample."""

    def read_encoded(self, index: int) -> bytes:
        try:
            with self._here().environment.begin(buffers=True) as txn:
                value = txn.get(self._key % index)
                if not value:
                    what = "is missing" if value is None else "is empty"
                    raise self._unusable(f"{self.name_of(index)} {what}", SampleError)
                self._place.reading(len(value))
                return bytes(value)
        except lmdb.Error as error:
            self._damaged(error)
