"""The samples of a Dataset in Parquet, in row groups that are read as a whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from vitprof.watch.forms.stored import Names, Read, Rows, Stored

GROUP_BYTES = 1 << 18
"""Bytes of a row group, about, and at least one sample: to read one of its samples reads them all, once while they are
the last. Of 196 KB each, groups of 16 took 4 times as long as groups of one (measured here)."""


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a file in a folder."""
    columns = [pyarrow.array(column, pyarrow.large_binary()) for column in zip(*rows, strict=True)]
    table = pyarrow.table(columns, names=list(names))
    most = max(1, GROUP_BYTES * len(table) // max(table.nbytes, 1))
    parquet.write_table(
        table,
        folder / "samples.parquet",
        row_group_size=most,
        compression="none",
        use_dictionary=False,
    )


class Samples(Stored):
    """Reads samples from Parquet files."""

    def open_part(self, folder: Path) -> Read:
        file, last = (
            parquet.ParquetFile(folder / "samples.parquet", memory_map=True),
            list[Any]([-1, ()]),
        )
        samples = file.metadata.row_group(0).num_rows

        def read(number: int) -> Sequence[Any]:
            group, row = divmod(number, samples)
            if last[0] != group:
                last[:] = group, file.read_row_group(group, use_threads=False).columns
            return [column[row].as_buffer() for column in last[1]]

        return read
