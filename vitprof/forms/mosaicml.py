"""Samples in the shards of MosaicML Streaming.

They are read by their index here; `streaming.StreamingDataset` shuffles by shards, in another order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streaming import LocalDataset, MDSWriter

from vitprof.forms.contract import Names

FOLDER = "samples"


class Writer:
    """Writes samples to shards."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        out = str(folder / FOLDER)
        self._writer = MDSWriter(out=out, columns=dict.fromkeys(names, "bytes"))

    def add(self, values: Sequence[bytes]) -> None:
        self._writer.write(dict(zip(self._names, values, strict=True)))

    def finish(self) -> None:
        self._writer.finish()

    def close(self) -> None:
        """Does nothing: MDSWriter keeps no file open between two shards."""


class Reader:
    """Reads samples from shards."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        self._samples = LocalDataset(local=str(folder / FOLDER))

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, number: int) -> Sequence[Any]:
        sample = self._samples[number]
        return [sample[name] for name in self._names]

    def close(self) -> None:
        del self._samples
