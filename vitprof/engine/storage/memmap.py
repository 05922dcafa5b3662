"""All images of a split as one uint8 array in a .npy file, mapped into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage.contract import Chunk, Format, Place, SplitFacts, SplitWriter, StoredSplit, image_bytes
from vitprof.engine.storage.labels import read_labels
from vitprof.errors import DataError


class Writer(SplitWriter):
    """A writer of train.npy or test.npy, chunk after chunk.

    It uses write calls, not a mapping: on a full disk a write call fails with an error, while writing to mapped memory
    kills the process (SIGBUS).
    """

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        self._file = (directory / f"{split.name}.npy").open("wb")
        header = {"descr": "|u1", "fortran_order": False, "shape": (split.n, *split.shape)}
        npy.write_array_header_1_0(self._file, header)

    def add(self, start: int, chunk: Chunk) -> None:
        assert chunk.pixels is not None
        self._file.write(np.ascontiguousarray(chunk.pixels).reshape(-1).data)

    def close(self) -> None:
        self._file.close()


FORMAT = Format(1, "pixels", Writer, image_bytes)


class MemmapStorage(StoredSplit):
    """Images in a mapped file: one gather of rows for each batch.

    It gives the system no advice (madvise). From a cold cache MADV_RANDOM read 0.05 times as fast for rows of 150 kB,
    since it turns readahead off, and MADV_WILLNEED for each row was no faster than no advice. From a warm cache all
    three were equally fast.
    """

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        super().__init__(info, place, train)
        self._path = place.root / f"{self._split}.npy"
        self._image_bytes = image_bytes(info)
        self.labels = read_labels(place.root, train=train)
        self._images: Tensor | None = None
        self._rows()

    def _rows(self) -> Tensor:
        if self._images is None:
            self._place.reading(0, 1)
            try:
                # "c" (private), since torch warns about arrays that cannot be written to; nothing is ever written
                images = np.load(self._path, mmap_mode="c", allow_pickle=False)
            except FileNotFoundError:
                raise self._unusable("cannot be read (it is missing)") from None
            except OSError as error:
                raise self._unusable(f"cannot be read ({error.strerror or error})") from error
            except (ValueError, EOFError, OverflowError) as error:  # NumPy's message advises to trust the file
                raise self._unusable("cannot be read (it is not an array of numbers, or it is damaged)") from error
            if not isinstance(images, np.memmap):
                raise self._unusable("is not a .npy file")
            if images.dtype != np.uint8 or images.shape != (len(self), *self.shape):
                raise self._unusable(f"holds {images.dtype} {images.shape}, not uint8 {(len(self), *self.shape)}")
            self._images = torch.from_numpy(images)
        return self._images

    def _unusable(self, reason: str) -> DataError:
        return DataError(f"{self._path} {reason}; {self._remedy}")

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        self._place.reading(len(indices) * self._image_bytes)
        # as fast as np.take(out=, mode="clip"), and raises an error for a wrong index
        return torch.index_select(self._rows(), 0, indices, out=out)

    def close(self) -> None:
        self._images = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_images": None}
