"""Encoded images in a form of `vitprof.forms`: a folder for each split, one value for each sample."""

import shutil
from pathlib import Path

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.data.contract import read_error
from vitprof.engine.storage import contract
from vitprof.errors import SampleError
from vitprof.forms import module_of
from vitprof.forms.contract import Reader

NAMES = ("jpg",)
"""The names of a sample's values: its image. Labels are where those of all storages are."""
VERSION = 2
"""Raised where all forms are to be written again."""
PHOTO_BYTES = 100_000
"""Bytes of an average photo."""
ROOM = 1.15
"""Room that a form takes over the bytes of its images, unless its module says `ROOM` itself."""


class Writer(contract.SplitWriter):
    """A writer of one split into a folder of its own."""

    def __init__(self, directory: Path, split: contract.SplitFacts, form: str) -> None:
        folder = directory / split.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._writer = module_of(form).Writer(folder, NAMES)

    def add(self, start: int, images: list[bytes]) -> None:
        for image in images:
            self._writer.add([image])

    def finish(self) -> None:
        self._writer.finish()

    def close(self) -> None:
        self._writer.close()


def format_in(form: str) -> contract.Format:
    """Returns how encoded images are written in a form."""
    room = PHOTO_BYTES * getattr(module_of(form), "ROOM", ROOM)

    def open_writer(directory: Path, split: contract.SplitFacts) -> contract.SplitWriter:
        return Writer(directory, split, form)

    return contract.Format(VERSION, "encoded", open_writer, lambda info: room)


class EncodedImages(contract.StoredSplit):
    """Encoded images, which a form's reader gives one by one."""

    def __init__(self, info: DatasetInfo, place: contract.Place, train: bool, form: str) -> None:
        super().__init__(info, place, train)
        self._form = form
        self._folder = place.root / self._split
        self.labels = contract.read_labels(place.root, train=train)
        try:
            self._here()
        finally:
            # The process that reads, perhaps another one, opens it again.
            self.close()

    def _open(self) -> Reader:
        # What a fork inherited.
        self.close()
        try:
            reader: Reader = module_of(self._form).Reader(self._folder, NAMES)
        except Exception as error:
            # Parsers raise anything on a damaged file.
            raise read_error(self._folder, contract.reason_of(error), self._remedy) from error
        if len(reader) != len(self):
            n = len(reader)
            reader.close()
            raise self._unusable(f"{self._folder} holds {n:,} samples, not {len(self):,}")
        return reader

    def read_encoded(self, index: int) -> bytes:
        reader = self._here()
        try:
            data = bytes(reader.read(index)[0])
        except Exception as error:
            what = f"{self.name_of(index)} cannot be read ({contract.reason_of(error)})"
            raise self._unusable(what, SampleError) from error
        if not data:
            raise self._unusable(f"{self.name_of(index)} is empty", SampleError)
        self._place.reading(len(data))
        return data

    def name_of(self, index: int) -> str:
        ids = contract.read_ids(self._place.root, train=self._split == "train")
        return f"{self._folder}: {ids[index]}"

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        super().close()
