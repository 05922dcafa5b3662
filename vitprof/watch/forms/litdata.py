"""The samples of a Dataset in LitData's chunks.

Samples are read by their index here; `litdata.StreamingDataset` shuffles by chunks, in another order.
"""

from pathlib import Path

from litdata import StreamingDataset
from litdata.streaming.writer import BinaryWriter

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to chunks in a folder."""
    writer = BinaryWriter(str(folder), chunk_bytes="64MB")
    for number, row in enumerate(rows):
        writer.add_item(number, dict(zip(names, row, strict=True)))
    writer.done()
    writer.merge()


class Samples(Stored):
    """Reads samples from LitData's chunks."""

    def open_part(self, folder: Path) -> Read:
        part = StreamingDataset(str(folder))
        return lambda number: [sample[name] for sample in [part[number]] for name in self.names]
