"""The samples of a Dataset in the shards of MosaicML Streaming.

Samples are read by their index here; `streaming.StreamingDataset` shuffles by shards, in another order.
"""

from pathlib import Path

from streaming import LocalDataset, MDSWriter

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to shards in a folder."""
    with MDSWriter(out=str(folder / "samples"), columns=dict.fromkeys(names, "bytes")) as writer:
        for row in rows:
            writer.write(dict(zip(names, row, strict=True)))


class Samples(Stored):
    """Reads samples from shards."""

    def open_part(self, folder: Path) -> Read:
        part = LocalDataset(local=str(folder / "samples"))
        return lambda number: [sample[name] for sample in [part[number]] for name in self.names]
