"""LitData's chunks of encoded images.

Its StreamingDataset asks PyPI for a newer version, and reads a whole chunk for each sample in an
order that is not its own. So samples are read with the reader below it, which maps all chunks.
"""

from bisect import bisect_right
from pathlib import Path
from threading import Lock
from typing import Any

from litdata.streaming.item_loader import PyTreeLoader
from litdata.streaming.reader import BinaryReader
from litdata.streaming.sampler import ChunkedIndex
from litdata.streaming.writer import BinaryWriter

from vitprof.engine.storage import contract
from vitprof.errors import DataError, SampleError, one_line


class Writer(contract.SplitWriter):
    """A writer of one split's chunks."""

    def __init__(self, directory: Path, split: contract.SplitFacts) -> None:
        self._folder = directory / split.name
        self._writer = BinaryWriter(str(self._folder), chunk_bytes="64MB")

    def add(self, start: int, images: list[bytes]) -> None:
        for number, image in enumerate(images, start):
            self._writer.add_item(number, image)

    def finish(self) -> None:
        self._writer.done()
        (index,) = self._folder.glob("*.index.json")
        # LitData's merge would wait for as many writers as WORLD_SIZE says.
        index.rename(self._folder / "index.json")


FORMAT = contract.Format(1, "encoded", Writer, lambda info: 106_000)


class ChunkStorage(contract.StoredSplit):
    """Encoded images in chunks. Mappings end with the reader."""

    def __init__(self, info: Any, place: contract.Place, train: bool) -> None:
        super().__init__(info, place, train)
        self.labels = contract.read_labels(place.root, train=train)
        self._folder = place.root / self._split

    def _open(self) -> tuple[Any, list[int], Lock]:
        try:
            reader = BinaryReader(str(self._folder), item_loader=PyTreeLoader(batch_decode=0))
            ends = [interval.chunk_end for interval in reader.get_chunk_intervals()]
            if ends[-1] != len(self):
                raise DataError(f"{ends[-1]} samples, not {len(self)}")
            reader.enable_posix_fast(list(range(len(ends))), keep=len(ends), prefetch=False)
        except Exception as error:
            # LitData has no class of its own for it.
            what = f"{self._folder / 'index.json'} cannot be read ({one_line(error)})"
            raise self._unusable(what) from error
        return reader, ends, Lock()

    def read_encoded(self, index: int) -> bytes:
        reader, ends, lock = self._here()
        try:
            chunk = bisect_right(ends, index)
            # The reader has one chunk that is the current one.
            with lock:
                encoded = bytes(reader.read(ChunkedIndex(index, chunk)))
        except Exception as error:
            what = f"{self.name_of(index)} cannot be read ({one_line(error)})"
            raise self._unusable(what, SampleError) from error
        self._place.reading(len(encoded))
        return encoded

    def name_of(self, index: int) -> str:
        return f"{self._folder}: sample {index}"
