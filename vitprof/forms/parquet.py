"""Samples in Parquet, in row groups that are read as a whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from vitprof.forms.contract import Names

FILE = "samples.parquet"
GROUP_BYTES = 1 << 18
"""Bytes of a row group, about, and at least one sample: to read one of its samples reads them all,
once while they are the last. Of 196 KB each, groups of 16 took 4 times as long as groups of one
(measured here)."""


class Writer:
    """Writes samples to a file; they are in memory until they are finished."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._path = folder / FILE
        self._names = list(names)
        self._rows: list[Sequence[bytes]] = []

    def add(self, values: Sequence[bytes]) -> None:
        self._rows.append(values)

    def finish(self) -> None:
        columns = [
            pyarrow.array(column, pyarrow.large_binary())
            for column in zip(*self._rows, strict=True)
        ]
        table = pyarrow.table(columns, names=self._names)
        parquet.write_table(
            table,
            self._path,
            row_group_size=max(1, GROUP_BYTES * len(table) // max(table.nbytes, 1)),
            compression="none",
            use_dictionary=False,
        )

    def close(self) -> None:
        self._rows = []


class Reader:
    """Reads samples from a file, a row group at a time."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = list(names)
        self._file = parquet.ParquetFile(folder / FILE, memory_map=True)
        self._group_rows = self._file.metadata.row_group(0).num_rows
        self._group = -1
        """The row group that was read last."""
        self._columns: Sequence[Any] = ()

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def read(self, number: int) -> Sequence[Any]:
        group, row = divmod(number, self._group_rows)
        if group != self._group:
            table = self._file.read_row_group(group, columns=self._names, use_threads=False)
            self._columns = [table[name] for name in self._names]
            self._group = group
        return [column[row].as_buffer() for column in self._columns]

    def close(self) -> None:
        self._file.close()
