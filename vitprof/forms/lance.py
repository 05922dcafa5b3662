"""Samples in Lance."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow

from vitprof.forms.contract import Names

FILE = "samples.lance"


class Writer:
    """Writes samples to a dataset of Lance; they are in memory until they are finished."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._path = str(folder / FILE)
        # A dot in a name would be a field of a struct.
        self._names = [name.replace(".", "_") for name in names]
        self._rows: list[Sequence[bytes]] = []

    def add(self, values: Sequence[bytes]) -> None:
        self._rows.append(values)

    def finish(self) -> None:
        columns = [
            pyarrow.array(column, pyarrow.large_binary())
            for column in zip(*self._rows, strict=True)
        ]
        lance.write_dataset(pyarrow.table(columns, names=self._names), self._path)

    def close(self) -> None:
        self._rows = []


class Reader:
    """Reads samples from Lance. Its threads do not survive a fork: no process may read before it
    forks workers.
    """

    def __init__(self, folder: Path, names: Names) -> None:
        self._samples = lance.dataset(str(folder / FILE))

    def __len__(self) -> int:
        return int(self._samples.count_rows())

    def read(self, number: int) -> Sequence[Any]:
        return [column[0].as_buffer() for column in self._samples.take([number]).columns]

    def close(self) -> None:
        del self._samples
