"""The samples of a Dataset in LMDB."""

import os
from pathlib import Path

import lmdb

from vitprof.watch.forms.stored import Names, Read, Rows, Stored

MOST_BYTES = 1 << 40
"""The most that a part may take; the file is as large as what is in it."""


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a database in a folder, in one transaction."""
    with (
        lmdb.open(str(folder), map_size=MOST_BYTES) as database,
        database.begin(write=True) as transaction,
    ):
        for number, row in enumerate(rows):
            for i, data in enumerate(row):
                transaction.put(b"%08d %d" % (number, i), data)


OPENED: dict[str, tuple[int, lmdb.Environment]] = {}
"""Folder -> the process that opened it, and the database."""


def database(folder: str) -> lmdb.Environment:
    """Opens a database, once in a process: LMDB allows no more."""
    if (
        folder in OPENED and OPENED[folder][0] != os.getpid()
    ):  # by the process that forked this one: a copy
        OPENED.pop(folder)[1].close()
    if folder not in OPENED:
        OPENED[folder] = os.getpid(), lmdb.open(folder, readonly=True, lock=False, readahead=False)
    return OPENED[folder][1]


class Samples(Stored):
    """Reads samples from LMDB."""

    def open_part(self, folder: Path) -> Read:
        transaction = database(str(folder)).begin(buffers=True)
        keys = range(len(self.kinds))
        return lambda number: [transaction.get(b"%08d %d" % (number, i)) for i in keys]
