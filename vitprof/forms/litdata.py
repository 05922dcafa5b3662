"""Samples in LitData's chunks.

LitData's StreamingDataset asks PyPI for a newer version, and reads a whole chunk for each sample in
an order that is not its own. So samples are read by their index with the reader below it, which maps
all chunks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from litdata.streaming.item_loader import PyTreeLoader
from litdata.streaming.reader import BinaryReader
from litdata.streaming.sampler import ChunkedIndex
from litdata.streaming.writer import BinaryWriter

from vitprof.forms.contract import Names

INDEX = "index.json"
"""What LitData says of the chunks of a folder."""


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
        (index,) = self._folder.glob(f"*.{INDEX}")
        # LitData's merge would wait for as many writers as WORLD_SIZE says.
        index.rename(self._folder / INDEX)

    def close(self) -> None:
        """Does nothing: BinaryWriter keeps no file open between two chunks."""


class Reader:
    """Reads samples from chunks. Mappings end with the reader."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        # LitData would wait for chunks to come.
        (folder / INDEX).stat()
        self._reader: Any = BinaryReader(str(folder), item_loader=PyTreeLoader(batch_decode=0))
        self._ends = [interval.chunk_end for interval in self._reader.get_chunk_intervals()]
        n_chunks = len(self._ends)
        self._reader.enable_posix_fast(list(range(n_chunks)), keep=n_chunks, prefetch=False)
        self._lock = Lock()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, number: int) -> Sequence[Any]:
        chunk = bisect_right(self._ends, number)
        # The reader has one chunk that is the current one.
        with self._lock:
            sample = self._reader.read(ChunkedIndex(number, chunk))
            return [bytes(sample[name]) for name in self._names]

    def close(self) -> None:
        self._reader = None
