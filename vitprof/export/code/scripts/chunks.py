"""Feed a training loop: pixels in chunks of one HDF5 dataset, prepared once, read into batches in runs of a chunk."""

from contextlib import closing
from itertools import islice

import numpy as np

from vitprof.export.code.scripts.rows import *
from vitprof.forms.hdf5 import ChunkedRows, RowsWriter, rows_of_a_chunk

STORAGE = "hdf5-chunked"  # one of hdf5-chunked
SHUFFLE = "block"  # one of full, block, none; a single row costs its chunk


class Chunks(RawFiles):
    """A chunked HDF5 dataset, read in runs of rows."""

    block = rows_of_a_chunk(SIZE * SIZE * len(MEAN))

    def write(self, images):
        shape = (len(self), *self.shape)
        with closing(RowsWriter(self.path, "images", shape, chunked=True)) as file:
            while some := list(islice(images, self.block)):
                file.add(np.stack(some))

    def open(self):
        return ChunkedRows(self.path, "images")

    def read(self, indices, out):
        self.handle().read(indices.numpy(), out.numpy())
        return out


def storage_kind():
    """Returns the class of the storage, and how the name of what is prepared ends."""
    return Chunks, ".chunks.h5"
