"""All images in one HDF5 file: datasets X_train, Y_train, X_test, Y_test.

X is (n, height, width, channels) uint8, in one piece or in chunks of rows; Y is (n,) int64.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine.storage import contract
from vitprof.engine.storage.arrays import MappedStorage
from vitprof.forms.hdf5 import ChunkedRows, RowsWriter, map_rows

HDF5_FILE = "data.h5"


def open_writer(
    directory: Path, split: contract.SplitFacts, *, chunked: bool
) -> contract.SplitWriter:
    """Returns the writer of a split's images. Labels are there for whoever opens the file."""
    shape = (split.n, *split.shape)
    labels = {f"Y_{split.name}": split.labels}
    path = directory / HDF5_FILE
    return contract.RowsWriter(
        RowsWriter(path, f"X_{split.name}", shape, chunked=chunked, more=labels)
    )


CONTIGUOUS_FORMAT = contract.Format(
    1, "pixels", functools.partial(open_writer, chunked=False), contract.image_bytes
)
CHUNKED_FORMAT = contract.Format(
    1, "pixels", functools.partial(open_writer, chunked=True), contract.image_bytes
)


class ContiguousStorage(MappedStorage):
    """Images in one piece: one gather of rows for each batch."""

    def __init__(self, info: DatasetInfo, location: contract.Location, train: bool) -> None:
        super().__init__(info, location, train, HDF5_FILE)
        # The process that reads, perhaps another one, opens it again.
        self.close()

    def _map(self) -> NDArray[Any]:
        return map_rows(self._path, f"X_{self._split}")


class ChunkedStorage(contract.StoredSplit):
    """Images in chunks of rows, which are read in runs of consecutive ones."""

    def __init__(self, info: DatasetInfo, location: contract.Location, train: bool) -> None:
        super().__init__(info, location, train)
        self._path = location.root / HDF5_FILE
        self.labels = contract.read_labels(location.root, train=train)
        try:
            self.block: int = self._here().block
            """Rows of a chunk: indices in runs of this many are read fast, in any order of the
            runs."""
        finally:
            # The process that reads, perhaps another one, opens it again.
            self.close()

    def _open(self) -> ChunkedRows:
        # What a fork inherited.
        self.close()
        try:
            rows = ChunkedRows(self._path, f"X_{self._split}")
        except contract.FAILURES as error:
            raise contract.unusable(self._path, error) from error
        wanted = (len(self), *self.shape)
        if rows.shape != wanted:
            rows.close()
            raise self._unusable(f"{self._path} holds uint8 {rows.shape}, not {wanted}")
        return rows

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = self._room(indices, out)
        if not len(indices):
            return out
        self._location.reading(out.nbytes)
        try:
            self._here().read(indices.numpy(), out.numpy())
        except (OSError, RuntimeError) as error:
            raise contract.unusable(self._path, error) from error
        return out

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        super().close()
