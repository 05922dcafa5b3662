"""The samples of a Dataset in HDF5: a contiguous dataset of bytes for each of their values."""

from pathlib import Path

import h5py
import numpy as np

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a file in a folder; all of a part are in memory before."""
    columns = list(zip(*rows, strict=True))
    with h5py.File(folder / "samples.h5", "w") as file:
        for name, column in zip(names, columns, strict=True):
            file[name] = np.frombuffer(b"".join(column), np.uint8)
            file[f"ends of {name}"] = np.cumsum([0, *map(len, column)])


class Samples(Stored):
    """Reads samples from HDF5 files."""

    def open_part(self, folder: Path) -> Read:
        file = h5py.File(folder / "samples.h5", "r")
        columns = [(file[name], file[f"ends of {name}"][:].tolist()) for name in self.names]
        return lambda number: [
            memoryview(data[ends[number] : ends[number + 1]]) for data, ends in columns
        ]
