"""The samples of a Dataset in WebDataset's shards.

Samples are read by their index here. `webdataset.WebDataset` reads shards in turn instead: good for slow drives and
networks, but in another order.
"""

import os
import tarfile
from pathlib import Path

from webdataset import TarWriter

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a shard in a folder."""
    with TarWriter(str(folder / "samples.tar")) as shard:
        for number, row in enumerate(rows):
            shard.write({"__key__": f"{number:08d}", **dict(zip(names, row, strict=True))})


class Samples(Stored):
    """Reads samples from shards, by index: where each value is in a shard is read once."""

    def open_part(self, folder: Path) -> Read:
        with tarfile.open(folder / "samples.tar") as shard:
            members = {member.name: (member.size, member.offset_data) for member in shard}
        descriptor = os.open(folder / "samples.tar", os.O_RDONLY)
        return lambda number: [
            os.pread(descriptor, *members[f"{number:08d}.{name}"]) for name in self.names
        ]
