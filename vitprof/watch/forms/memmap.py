"""The samples of a Dataset in one file for each of their values, which is memory-mapped."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a folder: a file for each value, and where each sample ends in it."""
    ends = [[0] for _ in names]
    with ExitStack() as stack:
        files = [stack.enter_context(open(folder / name, "wb")) for name in names]
        for row in rows:
            for file, data, of in zip(files, row, ends, strict=True):
                file.write(data)
                of.append(of[-1] + len(data))
        for file in files:
            file.write(b"\0")  # an empty file cannot be mapped
    np.save(folder / "ends.npy", np.array(ends))


class Samples(Stored):
    """Reads samples from files that are memory-mapped."""

    def open_part(self, folder: Path) -> Read:
        maps = [np.memmap(folder / name, np.uint8, "r").data for name in self.names]
        ends = np.load(folder / "ends.npy").tolist()
        return lambda number: [
            data[of[number] : of[number + 1]] for data, of in zip(maps, ends, strict=True)
        ]
