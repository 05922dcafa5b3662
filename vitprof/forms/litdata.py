"""Samples in LitData's chunks.

They are read by their index here; `litdata.StreamingDataset` shuffles by chunks, in another order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litdata import StreamingDataset
from litdata.streaming.writer import BinaryWriter

from vitprof.forms.contract import Names


class Writer:
    """Writes samples to chunks."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._folder = folder
        self._names = names
        self._writer = BinaryWriter(str(folder), chunk_bytes="64MB")
        self._n = 0

    def add(self, values: Sequence[bytes]) -> None:
        self._writer.add_item(self._n, dict(zip(self._names, values, strict=True)))
        self._n += 1

    def finish(self) -> None:
        self._writer.done()
        (index,) = self._folder.glob("*.index.json")
        # LitData's merge would wait for as many writers as WORLD_SIZE says.
        index.rename(self._folder / "index.json")

    def close(self) -> None:
        """Does nothing: BinaryWriter keeps no file open between two chunks."""


class Reader:
    """Reads samples from chunks."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        self._samples = StreamingDataset(str(folder))

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, number: int) -> Sequence[Any]:
        sample = self._samples[number]
        return [sample[name] for name in self._names]

    def close(self) -> None:
        del self._samples
