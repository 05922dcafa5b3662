"""Stored samples that are an image and a label each, as a data set of the user's own."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitprof.forms.contract import Found, Names, Reader, Refuse
from vitprof.forms.description import DESCRIPTION, Description, description_of, part_of
from vitprof.forms.gate import Gate
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


def _checked(folder: Path, refuse: Refuse) -> Description:
    """Returns what a folder says of its samples. Its names become names of files in some forms: what
    would lead to another folder is refused.
    """
    try:
        said = description_of(folder)
    except (ValueError, TypeError, RecursionError):
        refuse(f"its {DESCRIPTION} is not as `convert` writes it")
    if said is None:
        refuse("it holds no samples that `convert` stored")
    counts = (said.n, said.part, said.at)
    texts = (said.kinds, said.names)
    is_whole = all(type(count) is int for count in counts) and said.n >= 0 and said.part > 0
    are_texts = all(isinstance(each, list) for each in texts) and all(
        isinstance(text, str) for each in texts for text in each
    )
    if not is_whole or not are_texts or len(said.kinds) != len(said.names):
        refuse(f"its {DESCRIPTION} is not as `convert` writes it")
    for name in said.names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            refuse(f"its {DESCRIPTION} names {name!r}, which is no name of a value")
    return said


def found_in(folder: Path, reader: type[Reader], refuse: Refuse, gate: Gate) -> Found:
    """Returns the samples in a folder that holds stored ones. Their labels are read now.

    Raises what `refuse` does where they are no images with labels.
    """
    description = _checked(folder, refuse)
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
        gate.alive()
        return str(from_bytes(description.kinds[label], parts.read(index)[label]))

    try:
        samples = [("", class_of(index), index) for index in range(description.n)]
    except (LookupError, TypeError, OverflowError):
        # What a form's reader stumbles over, as files and description do not fit.
        refuse(f"what it holds is not what its {DESCRIPTION} says, or it is damaged")
    return Found(samples, read, opened=parts)
