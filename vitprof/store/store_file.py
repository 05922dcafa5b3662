"""Whether an SQLite store's file is still the one that was opened, with what its programs wrote.

Sync programs and restored backups delete it, replace it, or overwrite it in place: `cp backup.sqlite
recordings.sqlite`. SQLite goes on with the file that it has open without an error
(https://sqlite.org/howtocorrupt.html, 2.5), and of one that was overwritten it mixes old pages with new
ones.

A file that was overwritten is the same one for the system. Two numbers of its header, which SQLite
leaves to applications, tell it: a random tag of the store, and how often it was written to. The header
in the file changes at checkpoints alone (https://sqlite.org/wal.html), and so never goes back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
import urllib.parse
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

MOST = 2**31 - 1
"""The largest number of both: they are 32 bits, and signed."""
DELETED = "deleted"
REPLACED = "replaced"
OVERWRITTEN = "overwritten"
SETTLED_NS = 100_000_000
"""A file that was changed so recently is looked at again: the clock of some file systems ticks each 10 ms."""
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""What SQLite says of a file with pages that do not fit to each other, and of one that is none of its."""


class Header(NamedTuple):
    """What a store's file says of itself."""

    tag: int
    """0 in a store that only earlier versions have written to."""
    writes: int


NO_STORE = Header(0, -1)
"""Of a file that is no database any more."""


def count_write(db: sa.Connection) -> int:
    """Counts a transaction that writes to an SQLite store, within it, and returns the store's tag."""
    writes = db.exec_driver_sql("PRAGMA user_version").scalar_one()
    db.exec_driver_sql(f"PRAGMA user_version = {min(writes + 1, MOST)}")
    tag = tag_of(db)
    if not tag:
        tag = 1 + secrets.randbelow(MOST)
        db.exec_driver_sql(f"PRAGMA application_id = {tag}")
    return tag


def tag_of(db: sa.Connection) -> int:
    return int(db.exec_driver_sql("PRAGMA application_id").scalar_one())


def is_damaged(error: BaseException | None) -> bool:
    """Returns whether SQLite says that what it read is no database, or none that is whole."""
    code = getattr(error, "sqlite_errorcode", None)
    # The lower byte; the others say where it was noticed.
    return code is not None and code & 0xFF in DAMAGED


class StoreFile:
    """The file of a store that this program has open. Several threads may ask at once."""

    def __init__(self, path: Path, tag: int) -> None:
        """Raises `OSError`."""
        self.path = path.absolute()
        """From the root: the current folder may change."""
        self.tag = tag
        """That of the store, which the file may get at a checkpoint; 0: not known."""
        self._opened = self.path.stat()
        self._looked_at: tuple[int, ...] | None = None
        """The times and size that the file had when its header was read last."""
        self._header = _header_of(self.path) or Header(0, 0)
        self._is_overwritten = False

    def what_became_of_it(self) -> str:
        """Returns `DELETED`, `REPLACED`, `OVERWRITTEN`; "" where it is as it was, or nobody can tell."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return DELETED
        except OSError:
            # its file system does not tell: the transaction will
            return ""
        if not os.path.samestat(found, self._opened):
            return REPLACED
        # The former header is taken before the new one is read: another thread may read a later one.
        known = self._header
        state = (found.st_ctime_ns, found.st_mtime_ns, found.st_size)
        if not self._is_overwritten and state != self._looked_at:
            header = _header_of(self.path)
            if header is None:
                return ""
            self._is_overwritten = self._went_back(known, header)
            self._header = header
            is_settled = time.time_ns() - found.st_ctime_ns > SETTLED_NS
            self._looked_at = state if is_settled else None
        return OVERWRITTEN if self._is_overwritten else ""

    def _went_back(self, known: Header, header: Header) -> bool:
        is_other = bool(known.tag) and header.tag != known.tag
        is_foreign = bool(self.tag) and header.tag not in (0, self.tag)
        return is_other or is_foreign or header.writes < known.writes


def _header_of(path: Path) -> Header | None:
    """Returns what is in the file itself, without the last changes, which are in the -wal file; None
    where that cannot be told now.

    By SQLite: to close the file otherwise would take this process's locks of it
    (https://sqlite.org/howtocorrupt.html, 2.2.1).
    """
    url = f"file:{urllib.parse.quote(str(path))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(url, uri=True)) as db:
            (writes,) = db.execute("PRAGMA user_version").fetchone()
            (tag,) = db.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error as error:
        # In the middle of a checkpoint, the header says more pages than the file has.
        is_none = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        return NO_STORE if is_none else None
    return Header(tag, writes)
