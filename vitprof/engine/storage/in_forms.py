"""Images in a form of `vitprof.forms`, encoded or as pixels: a folder for each split, one value for
each sample.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.files import read_error
from vitprof.engine.storage import contract
from vitprof.errors import DataError, SampleError
from vitprof.forms import module_of
from vitprof.forms.contract import Reader, Unreadable

NAMES = {"encoded": ("jpg",), "pixels": ("bin",)}
"""The names of a sample's values: its image. Labels are where those of all storages are."""
VERSION = 2
"""Raised where all forms are to be written again."""
PHOTO_BYTES = 100_000
"""Bytes of an average photo."""
ROOM = 1.15
"""Room that a form takes over the bytes of its images, unless its module says `ROOM` itself."""


class Writer(contract.SplitWriter):
    """A writer of one split into a folder of its own."""

    def __init__(
        self, directory: Path, split: contract.SplitFacts, form: str, needs: contract.Needs
    ) -> None:
        folder = directory / split.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._writer = module_of(form).Writer(folder, NAMES[needs])

    def add(self, start: int, images: NDArray[np.uint8] | list[bytes]) -> None:
        for image in images:
            self._writer.add([image if isinstance(image, bytes) else image.tobytes()])

    def finish(self) -> None:
        self._writer.finish()

    def close(self) -> None:
        self._writer.close()


def format_in(form: str, needs: contract.Needs) -> contract.Format:
    """Returns how encoded images, or pixels, are written in a form."""
    room = getattr(module_of(form), "ROOM", ROOM)

    def open_writer(directory: Path, split: contract.SplitFacts) -> contract.SplitWriter:
        return Writer(directory, split, form, needs)

    def bytes_a_sample(info: DatasetInfo) -> float:
        n_bytes = PHOTO_BYTES if needs == "encoded" else contract.image_bytes(info)
        return float(room * n_bytes)

    return contract.Format(VERSION, needs, open_writer, bytes_a_sample)


class ImagesInForm(contract.StoredSplit):
    """The common part of both: the reader of a split's folder, which is looked at when the storage
    is opened.
    """

    _needs: contract.Needs

    def __init__(
        self, info: DatasetInfo, location: contract.Location, train: bool, form: str
    ) -> None:
        super().__init__(info, location, train)
        self._form = form
        self._folder = location.root / self._split
        self.labels = contract.read_labels(location.root, train=train)
        try:
            self._look()
        finally:
            # The process that reads, perhaps another one, opens it again.
            self.close()

    def _look(self) -> None:
        """Raises `DataError` where the form has not as many samples as there are labels."""
        n = len(self._here())
        if n != len(self):
            raise self._unusable(f"{self._folder} holds {n:,} samples, not {len(self):,}")

    def _open(self) -> Reader:
        # What a fork inherited.
        self.close()
        try:
            reader: Reader = module_of(self._form).Reader(self._folder, NAMES[self._needs])
        except Exception as error:
            # Parsers raise anything on a damaged file.
            raise self._damaged(error) from error
        return reader

    def _damaged(self, error: Exception) -> DataError:
        return read_error(self._folder, contract.reason_of(error), self._remedy)

    def _unreadable(self, index: int, what: str) -> DataError:
        return self._unusable(f"{self.name_of(index)} {what}", SampleError)

    def name_of(self, index: int) -> str:
        ids = contract.read_ids(self._location.root, train=self._split == "train")
        return f"{self._folder}: {ids[index]}"

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        super().close()


class EncodedImages(ImagesInForm):
    """Encoded images, which a form's reader gives one by one."""

    _needs = "encoded"

    def read_encoded(self, index: int) -> bytes:
        reader = self._here()
        try:
            data = bytes(reader.read(index)[0])
        except Unreadable as error:
            raise self._unreadable(index, error.why) from error
        except Exception as error:
            what = f"cannot be read ({contract.reason_of(error)})"
            raise self._unreadable(index, what) from error
        if not data:
            raise self._unreadable(index, "is empty")
        self._location.reading(len(data))
        return data


class PixelImages(ImagesInForm):
    """Pixels, of which a form's reader gives a batch at once, or one image after another."""

    _needs = "pixels"

    def _open(self) -> Any:
        reader = super()._open()
        if not hasattr(reader, "read_rows"):
            return OneByOne(reader)
        return reader

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = self._room(indices, out)
        if not len(indices):
            return out
        self._location.reading(out.nbytes)
        # view: a copy would leave `out` as it was.
        rows = out.view(len(indices), -1).numpy()
        reader = self._here()
        try:
            reader.read_rows(indices.tolist(), rows)
        except Unreadable as error:
            raise self._unreadable(error.number, error.why) from error
        except Exception as error:
            raise self._damaged(error) from error
        return out


class OneByOne:
    """Reads a batch of a form that has no way of its own to do so."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.close = reader.close

    def __len__(self) -> int:
        return len(self._reader)

    def read_rows(self, numbers: list[int], rows: NDArray[np.uint8]) -> None:
        for number, row in zip(numbers, rows, strict=True):
            data = self._reader.read(number)[0]
            if len(data) != len(row):
                raise Unreadable(number, f"holds {len(data)} bytes, not {len(row)}")
            row[:] = np.frombuffer(data, np.uint8)
