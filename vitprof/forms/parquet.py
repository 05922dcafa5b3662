"""Samples in Parquet, in row groups that are read as a whole."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from vitprof.forms.contract import Found, Names, Refuse
from vitprof.forms.gate import Gate

FILE = "samples.parquet"
GROUP_BYTES = 1 << 18
"""Bytes of a row group, about, and at least one sample: to read one of its samples reads them all,
once while they are the last. Of 196 KB each, groups of 16 took 4 times as long as groups of one
(measured here)."""


class Writer:
    """Writes samples to a file, a row group at a time."""

    def __init__(self, folder: Path, names: Names) -> None:
        schema = pyarrow.schema([(name, pyarrow.large_binary()) for name in names])
        self._schema = schema
        self._file = parquet.ParquetWriter(
            folder / FILE, schema, compression="none", use_dictionary=False
        )
        self._rows: list[Sequence[bytes]] = []
        """The samples of the next row group."""
        self._n_bytes = 0
        """Bytes of all samples."""
        self._group_rows = 0
        """Samples in a row group, as many as fit in the first; 0: not known yet."""

    def add(self, values: Sequence[bytes]) -> None:
        self._n_bytes += sum(map(len, values))
        if not self._group_rows and self._rows and self._n_bytes > GROUP_BYTES:
            self._group_rows = len(self._rows)
        if self._rows and len(self._rows) == self._group_rows:
            self._write()
        self._rows.append(values)

    def _write(self) -> None:
        columns = [
            pyarrow.array(column, pyarrow.large_binary())
            for column in zip(*self._rows, strict=True)
        ]
        # One row group, however many rows it has.
        self._file.write_table(
            pyarrow.table(columns, schema=self._schema), row_group_size=len(self._rows)
        )
        self._rows = []

    def finish(self) -> None:
        if self._rows:
            self._write()
        self._file.close()

    def close(self) -> None:
        self._file.close()


class Reader:
    """Reads samples from a file, a row group at a time."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = list(names)
        self._file = parquet.ParquetFile(folder / FILE, memory_map=True)
        self._group_rows = self._file.metadata.row_group(0).num_rows
        self._reading = threading.Lock()
        """Held while a row group is read: of a ParquetFile that several threads read, pyarrow ended the
        process or waited for ever."""
        self._held: tuple[int, Sequence[Any]] = (-1, ())
        """The row group that was read last, and its columns: replaced as one, for several threads."""

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def read(self, number: int) -> Sequence[Any]:
        wanted, row = divmod(number, self._group_rows)
        group, columns = self._held
        if group != wanted:
            columns = self._read_group(wanted)
        return [column[row].as_buffer() for column in columns]

    def _read_group(self, wanted: int) -> Sequence[Any]:
        """Returns the columns of a row group."""
        with self._reading:
            table = self._file.read_row_group(wanted, columns=self._names, use_threads=False)
            columns = [table[name] for name in self._names]
            self._held = (wanted, columns)
        return columns

    def close(self) -> None:
        self._file.close()


IMAGE = ("image", "bytes")
"""Usual names of a column of images' bytes."""


def find(path: str, options: Mapping[str, str], refuse: Refuse, gate: Gate) -> Found:
    """Returns the samples of a table of images' bytes, or of paths of image files where it has no
    column of bytes.
    """
    from vitprof.forms.tables import LABEL, cells_found, column, encoded, path_column, paths_in

    top = Path(path).parent
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    label = column("label", LABEL, names, options, refuse)
    has_images = any(name in names for name in (*IMAGE, options.get("image")))
    if "path" in options or not has_images:
        paths = path_column(names, options, refuse)
        table = file.read(columns=[paths.name, label], use_threads=False)
        rows = zip(table[paths.name].to_pylist(), table[label].to_pylist(), strict=True)
        return paths_in(top, paths, rows, gate)
    image = column("image", IMAGE, names, options, refuse)
    labels = file.read(columns=[label], use_threads=False)[label].to_pylist()
    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    if sum(groups) != len(labels):
        # Before a key for each is made: a damaged file may say any number.
        refuse(f"it is damaged: it has {len(labels):,} labels, and says {sum(groups):,} rows")
    keys = [(group, row) for group, rows in enumerate(groups) for row in range(rows)]
    held: tuple[int, list[Any]] = (-1, [])
    reading = threading.Lock()

    def read(key: tuple[int, int]) -> bytes:
        nonlocal held
        group, row = key
        # several threads may read: see `Reader`
        with reading:
            if held[0] != group:
                # Keys are requested in order, so one row group in memory is enough.
                table = file.read_row_group(group, columns=[image], use_threads=False)
                held = (group, table[image].to_pylist())
            cells = held[1]
        return encoded(cells[row], top, gate)

    return cells_found(zip(keys, labels, strict=True), read)
