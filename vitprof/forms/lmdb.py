"""Samples in LMDB: a key for each value."""

import errno
import os
import shutil
import struct
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from vitprof.forms.contract import Found, Names, Refuse, Unreadable
from vitprof.forms.gate import Gate

FILE = "data.mdb"
KEY = b"%08d %02d"
"""The key of a value: the numbers of the sample and of the value, so that keys are in order."""
FIRST_MAP_BYTES = 1 << 28
"""Size of the map at first, which is doubled when the file outgrows it.

The map takes no room on the disk."""
COMMIT_BYTES = 16 << 20
"""Bytes that are written in one transaction, about."""


class Writer:
    """Writes samples to one file, some in each transaction."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._path = folder / FILE
        self._n = 0
        self._items: list[tuple[bytes, bytes]] = []
        """What the next transaction writes."""
        self._n_bytes = 0
        try:
            # No lock file: nobody else opens it meanwhile. No sync: it waits for the disk once, at
            # the end.
            self._environment = lmdb.open(
                str(self._path), subdir=False, lock=False, sync=False, map_size=FIRST_MAP_BYTES
            )
        except lmdb.Error as error:
            raise refused(self._path, error) from error

    def add(self, values: Sequence[bytes]) -> None:
        for at, data in enumerate(values):
            self._items.append((KEY % (self._n, at), data))
            self._n_bytes += len(data)
        self._n += 1
        if self._n_bytes >= COMMIT_BYTES:
            self._commit()

    def _commit(self) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    # Appended keys fill pages completely: a file of small images is 1.05 times
                    # their size instead of 1.31.
                    transaction.cursor().putmulti(self._items, append=True)
                break
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as error:
                raise refused(self._path, error, self._n_bytes) from error
        self._items = []
        self._n_bytes = 0

    def finish(self) -> None:
        self._commit()
        self._environment.sync(True)

    def close(self) -> None:
        pages = self._environment.info()["last_pgno"] + 1
        wanted = pages * self._environment.stat()["psize"]
        self._environment.close()
        # Pages that a transaction took and gave back are never written, but readers require the
        # header's length.
        if self._path.stat().st_size < wanted:
            os.truncate(self._path, wanted)


def refused(path: Path, error: Exception, n_bytes: int = 0) -> OSError:
    """Returns the system's error for one that LMDB raised while writing `n_bytes` to `path`."""
    # On a full disk LMDB writes what fits and then reports an "Input/output error".
    full = isinstance(error, lmdb.DiskError) or shutil.disk_usage(path.parent).free < n_bytes
    number = errno.ENOSPC if full else errno.EIO
    return OSError(number, str(error), str(path))


META = struct.Struct("=16xIIQQI44x48xQQ")
"""Layout of a meta page: lmdb's mdb.c, MDB_page and MDB_meta on a 64-bit machine. A page's header
takes 16 bytes; then follow magic, version, address, map size, two MDB_db (the first one's first field
is the page size), last page and transaction number."""
MAGIC_AT = 0
PAGE_SIZE_AT = 4
LAST_PAGE_AT = 5
TRANSACTION_AT = 6
"""Places of these in what `META` unpacks."""
MAGIC = 0xBEEFC0DE


def ensure_whole(path: Path) -> None:
    """Raises `ValueError` unless this is an LMDB file of its full length, and `OSError`.

    LMDB itself maps a file of any length: a read beyond its end would kill the process with SIGBUS.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = META.unpack(file.read(META.size))
            page_size = first[PAGE_SIZE_AT]
            if first[MAGIC_AT] != MAGIC or not 256 <= page_size <= 65536:
                raise ValueError("it is not an LMDB file")
            file.seek(page_size)
            second = META.unpack(file.read(META.size))
    except struct.error:
        raise ValueError("it ends inside its header") from None
    # There are two meta pages, which transactions write in turns: that of the later one counts.
    latest = max(first, second, key=lambda meta: int(meta[TRANSACTION_AT]))
    wanted = (latest[LAST_PAGE_AT] + 1) * page_size
    if size < wanted:
        raise ValueError(f"it is {size:,} bytes long, and its header says {wanted:,}")


class Shared:
    """An environment, and what reads it: LMDB refuses to open a file twice in a process."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.readers: weakref.WeakSet[Any] = weakref.WeakSet()


SHARED: weakref.WeakValueDictionary[tuple[str, int], Shared] = weakref.WeakValueDictionary()
"""By path and process. No two threads may open a reader at the same time."""


def shared(path: Path) -> Shared:
    """Returns the environment of a file in this process."""
    key = os.path.realpath(path), os.getpid()
    found = SHARED.get(key)
    if found is not None and found.readers:
        return found
    for (other, _), inherited in list(SHARED.items()):
        # After a fork, descriptor and map are this process's own copies.
        if other == key[0]:
            inherited.environment.close()
    ensure_whole(path)
    # Finished files are only read: without locks, and without the system's readahead, which would
    # read pages that are not needed (lmdb.readthedocs.io, `Environment`).
    environment = lmdb.open(
        str(path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False
    )
    found = Shared(environment)
    SHARED[key] = found
    return found


class Reader:
    """Reads samples; several threads may do so at once. A read is one transaction."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._values = range(len(names))
        self._shared = shared(folder / FILE)
        self._shared.readers.add(self)
        self._begin = self._shared.environment.begin

    def __len__(self) -> int:
        return int(self._shared.environment.stat()["entries"]) // len(self._values)

    def read(self, number: int) -> Sequence[Any]:
        with self._begin(buffers=True) as transaction:
            values = [transaction.get(KEY % (number, at)) for at in self._values]
            if None in values:
                raise Unreadable(number, "is missing")
            # The buffers are valid only during the transaction.
            return [bytes(value) for value in values]

    def read_rows(self, numbers: Sequence[int], rows: NDArray[np.uint8]) -> None:
        """Reads samples of one value, which have the same length, into `rows` (b, bytes)."""
        n_bytes = rows.shape[1]
        with self._begin(buffers=True) as transaction:
            get = transaction.get
            # Keys are made here and not kept: fetching 1,000 scattered objects from memory took
            # longer (0.069 of a C gather's speed instead of 0.086). cursor.getmulti was slower
            # still (0.019).
            values = [get(b"%08d 00" % number) for number in numbers]
            try:
                whole = set(map(len, values)) == {n_bytes}
            except TypeError:
                # One is None: it has no length.
                whole = False
            if not whole:
                blame(numbers, values, n_bytes)
            rows.reshape(-1)[:] = np.frombuffer(b"".join(values), np.uint8)

    def close(self) -> None:
        self._shared.readers.discard(self)
        if not self._shared.readers:
            self._shared.environment.close()


def blame(numbers: Sequence[int], values: Sequence[Any], n_bytes: int) -> None:
    """Raises an error that names the first sample that is missing or of another length."""
    for number, value in zip(numbers, values, strict=True):
        if value is None:
            raise Unreadable(number, "is missing")
        if len(value) != n_bytes:
            raise Unreadable(number, f"holds {len(value)} bytes, not {n_bytes}")


MAGIC_BYTES = 16
"""The first bytes of a value that tell an image file; the longest that `suffix` looks at are 12."""
UNNAMED = "0"
"""Label of a key without a class."""


def find(path: str, options: Mapping[str, str], refuse: Refuse, gate: Gate) -> Found:
    """Returns the samples of an LMDB whose values are image files; a key CLASS/NAME gives the
    label.
    """
    from vitprof.forms.image_files import suffix

    is_folder = os.path.isdir(path)
    file = Path(path) / FILE if is_folder else Path(path)
    try:
        ensure_whole(file)
    except (OSError, ValueError) as error:
        refuse(f"LMDB cannot open it ({error})")
    try:
        store = lmdb.open(
            path, readonly=True, lock=False, readahead=False, create=False, subdir=is_folder
        )
    except lmdb.Error as error:
        refuse(f"LMDB cannot open it ({type(error).__name__}: {error})")
    samples: list[tuple[str, str, bytes]] = []
    others = 0
    try:
        with store.begin(buffers=True) as transaction:
            # Pages of a damaged file may lead in a circle.
            most = transaction.stat()["entries"]
            for key, value in transaction.cursor():
                gate.alive()
                if len(samples) + others >= most:
                    raise lmdb.CorruptedError("it has more values than it says")
                # The last byte, too: what is not in the file ends the process here, and not in a job.
                _ = bytes(value[-1:])
                if suffix(bytes(value[:MAGIC_BYTES])):
                    name = bytes(key)
                    label = name.rpartition(b"/")[0].decode("utf-8", "replace") or UNNAMED
                    samples.append(("", label, name))
                else:
                    others += 1
    except lmdb.Error as error:
        store.close()
        refuse(f"it is damaged ({type(error).__name__}: {error})")

    def read(key: bytes) -> bytes:
        try:
            with store.begin() as transaction:
                return bytes(transaction.get(key) or b"")
        except lmdb.Error as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    notes = []
    if others:
        are = "1 value is no image file"
        if others > 1:
            are = f"{others:,} values are no image files"
        notes.append(f"{are}: left out")
    if all(label == UNNAMED for _, label, _ in samples):
        notes.append("no key is CLASS/NAME, so all samples are of one class")
    return Found(samples, read, notes, store)
