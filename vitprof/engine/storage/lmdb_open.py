"""The LMDB files that are open in this process, each only once, however many storages read it.

LMDB must not open a file twice in one process and must not be used across a fork (lmdb.readthedocs.io, "Caveats"). So
the storages of a process share the environments opened here, and a child opens the file again.
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from pathlib import Path
from typing import Any

import lmdb

from vitprof.engine.storage.unusable import unusable

# Layout of a meta page: lmdb's mdb.c, MDB_page and MDB_meta on a 64-bit machine. A page's header takes 16 bytes; then
# follow magic, version, address, map size, two MDB_db (the first one's first field is the page size), last page and
# transaction number.
_META = struct.Struct("=16xIIQQI44x48xQQ")
_MAGIC = 0xBEEFC0DE


class Opened:
    """An environment, the process that opened it, and the storages that read it."""

    def __init__(self, path: Path) -> None:
        _ensure_whole(path)
        try:
            self.environment: Any = lmdb.open(
                str(path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False
            )
        except lmdb.Error as error:
            raise unusable(path, str(error)) from error
        self._pid = os.getpid()
        self.readers: weakref.WeakSet[object] = weakref.WeakSet()

    def of_this_process(self) -> bool:
        """Returns whether this process opened it, not the process that this one was forked from."""
        return self._pid == os.getpid()

    def leave(self, reader: object) -> None:
        """Removes `reader`, and closes the environment once it has no readers left."""
        with _lock:
            self.readers.discard(reader)
            if not self.readers:
                self.environment.close()


_lock = threading.Lock()
_opened: weakref.WeakValueDictionary[str, Opened] = weakref.WeakValueDictionary()
# Held while forking, so that a child never inherits it held by a thread that the child does not have.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def opened_here(path: Path, reader: object) -> Opened:
    """Returns the file at `path`, open in this process. `reader` must `leave` it when done. Raises `DataError`."""
    key = os.path.realpath(path)
    with _lock:
        found = _opened.get(key)
        if found is not None and not (found.readers and found.of_this_process()):
            # py-lmdb refuses to open the file again while this is open. After a fork, descriptor and map are this
            # process's own copies; the parent's stay open.
            found.environment.close()
            found = None
        if found is None:
            found = _opened[key] = Opened(path)
        found.readers.add(reader)
        return found


def _ensure_whole(path: Path) -> None:
    """Raises `DataError` unless this is an LMDB file of its full length.

    LMDB itself maps a file of any length: a read beyond its end would kill the process with SIGBUS.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = _META.unpack(_exactly(file.read(_META.size)))
            page_size = first[4]
            if first[0] != _MAGIC or not 256 <= page_size <= 65536:
                raise unusable(path, "it is not an LMDB file")
            file.seek(page_size)
            second = _META.unpack(_exactly(file.read(_META.size)))
    except FileNotFoundError:
        raise unusable(path, "it is missing") from None
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error
    except EOFError:
        raise unusable(path, "it ends inside its header") from None
    last_page = max(first, second, key=lambda meta: int(meta[6]))[5]
    wanted = (last_page + 1) * page_size
    if size < wanted:
        raise unusable(path, f"{size:,} bytes long, and its header says {wanted:,}")


def _exactly(raw: bytes) -> bytes:
    if len(raw) != _META.size:
        raise EOFError
    return raw
