"""The samples of a Dataset in Lance."""

from pathlib import Path

import lance
import pyarrow

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a dataset in a folder."""
    columns = [pyarrow.array(column, pyarrow.large_binary()) for column in zip(*rows, strict=True)]
    table = pyarrow.table(columns, names=[name.replace(".", "_") for name in names])
    lance.write_dataset(table, str(folder / "samples.lance"))


class Samples(Stored):
    """Reads samples from Lance. Its threads do not survive a fork: no process may read before it forks workers."""

    def open_part(self, folder: Path) -> Read:
        part = lance.dataset(str(folder / "samples.lance"))
        return lambda number: [column[0].as_buffer() for column in part.take([number]).columns]
