"""Stored samples that are an image and a label each, as a data set of the user's own."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitprof.forms.contract import Found, Names, Reader, Refuse
from vitprof.forms.description import Description, description_of, part_of
from vitprof.forms.values import from_bytes

IMAGES = ("file", "image")
LABELS = ("int", "str", "scalar")
"""Kinds of values that may be the label: a number of NumPy's is a scalar."""


class Parts:
    """The readers of a folder's parts, each opened when it is first needed."""

    def __init__(self, folder: Path, description: Description, reader: type[Reader]) -> None:
        self._folder = folder
        self._names: Names = description.names
        self._samples = description.part
        self._reader = reader
        self._opened: dict[int, Reader] = {}

    def read(self, index: int) -> Sequence[Any]:
        """Returns the values of a sample, by its number in the folder."""
        part, number = divmod(index, self._samples)
        if part not in self._opened:
            self._opened[part] = self._reader(part_of(self._folder, part), self._names)
        return self._opened[part].read(number)

    def close(self) -> None:
        for reader in self._opened.values():
            reader.close()
        self._opened = {}


def found_in(folder: Path, reader: type[Reader], refuse: Refuse) -> Found:
    """Returns the samples in a folder that holds stored ones. Their labels are read now.

    Raises what `refuse` does where they are no images with labels.
    """
    description = description_of(folder)
    if description is None:
        refuse("it holds no samples that `convert` stored")
    kinds = [kind.partition(" ")[0] for kind in description.kinds]
    images = [at for at, kind in enumerate(kinds) if kind in IMAGES]
    labels = [at for at, kind in enumerate(kinds) if kind in LABELS]
    if len(images) != 1 or len(labels) != 1:
        refuse(f"a sample is {', '.join(description.kinds)}; one image and one label are read")
    image = images[0]
    label = labels[0]
    parts = Parts(folder, description, reader)

    def read(index: int) -> bytes:
        data = parts.read(index)[image]
        if kinds[image] == "file":
            return bytes(data)
        file = io.BytesIO()
        # The fastest level: these files are made once, and read all the time.
        from_bytes(description.kinds[image], data).save(file, "PNG", compress_level=1)
        return file.getvalue()

    def class_of(index: int) -> str:
        return str(from_bytes(description.kinds[label], parts.read(index)[label]))

    samples = [("", class_of(index), index) for index in range(description.n)]
    return Found(samples, read, opened=parts)
