"""Feed a training loop: all images as one HDF5 dataset of pixels, prepared once; a batch is one gather of its rows."""

from pathlib import Path

import torch

from vitprof.export.code.scripts.array import *
from vitprof.forms.hdf5 import RowsWriter, map_rows

STORAGE = "hdf5"  # one of hdf5


def ending() -> str:
    """Returns how the name of what is prepared ends."""
    return ".h5"


def images_writer(path: Path, shape):
    """Returns what writes images of that shape, all together, to a file."""
    return RowsWriter(path, "images", shape)


def open_images(path: Path):
    """Returns the pixels of a prepared file, mapped into memory, (n, SIZE, SIZE, channels) uint8."""
    return torch.from_numpy(map_rows(path, "images"))
