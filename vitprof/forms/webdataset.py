"""Samples in WebDataset's shards.

They are read by their index here. `webdataset.WebDataset` reads shards in turn instead: good for
slow drives and networks, but in another order.
"""

import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitprof.forms.contract import Names

FILE = "samples.tar"


class Writer:
    """Writes samples to a shard: a member for each value, named as the sample and the value."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        self._shard = tarfile.open(folder / FILE, "w")  # noqa: SIM115
        self._n = 0

    def add(self, values: Sequence[bytes]) -> None:
        for name, data in zip(self._names, values, strict=True):
            member = tarfile.TarInfo(f"{self._n:08d}.{name}")
            member.size = len(data)
            self._shard.addfile(member, io.BytesIO(data))
        self._n += 1

    def finish(self) -> None:
        """Does nothing: the end of the shard is written as it is closed."""

    def close(self) -> None:
        self._shard.close()


class Reader:
    """Reads samples by index: where each value is in the shard is read once."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        with tarfile.open(folder / FILE) as shard:
            self._places = {member.name: (member.size, member.offset_data) for member in shard}
        self._file = io.FileIO(folder / FILE)

    def __len__(self) -> int:
        return len(self._places) // len(self._names)

    def read(self, number: int) -> Sequence[Any]:
        file = self._file.fileno()
        return [os.pread(file, *self._places[f"{number:08d}.{name}"]) for name in self._names]

    def close(self) -> None:
        self._file.close()
