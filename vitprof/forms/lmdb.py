"""Samples in LMDB: a key for each value."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb

from vitprof.forms.contract import Names

MOST_BYTES = 1 << 40
"""The most that a folder may take; the file is as large as what is in it."""


class Writer:
    """Writes samples to a database, in one transaction."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._database = lmdb.open(str(folder), map_size=MOST_BYTES)
        self._transaction = self._database.begin(write=True)
        self._n = 0

    def add(self, values: Sequence[bytes]) -> None:
        for at, data in enumerate(values):
            self._transaction.put(b"%08d %d" % (self._n, at), data)
        self._n += 1

    def finish(self) -> None:
        self._transaction.commit()

    def close(self) -> None:
        self._database.close()


OPENED: dict[str, tuple[int, lmdb.Environment]] = {}
"""Folder -> the process that opened it, and the database."""


def database(folder: str) -> lmdb.Environment:
    """Opens a database, once in a process: LMDB allows no more."""
    if folder in OPENED and OPENED[folder][0] != os.getpid():
        # Opened by the process that forked this one: a copy.
        OPENED.pop(folder)[1].close()
    if folder not in OPENED:
        OPENED[folder] = os.getpid(), lmdb.open(folder, readonly=True, lock=False, readahead=False)
    return OPENED[folder][1]


class Reader:
    """Reads samples from a database."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._values = range(len(names))
        self._transaction = database(str(folder)).begin(buffers=True)

    def __len__(self) -> int:
        return int(self._transaction.stat()["entries"]) // len(self._values)

    def read(self, number: int) -> Sequence[Any]:
        get = self._transaction.get
        return [get(b"%08d %d" % (number, at)) for at in self._values]

    def close(self) -> None:
        self._transaction.abort()
