"""What a path holds, whatever kind its spec names.

It is told by the first bytes of a file and by the names in a folder, for the line that refuses a spec
of another kind: what is there, and how it is written.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vitprof.datasets.own.specs import Spec
from vitprof.forms import form_of
from vitprof.forms.contract import TEST_SPLITS
from vitprof.forms.description import DESCRIPTION, part_of
from vitprof.forms.image_files import SUFFIXES

FIRST_BYTES = 512
"""Bytes that tell what a file is; those of a tar file's first header."""
TAR_AT = 257
"""Where a tar file has its magic."""
LMDB_MAGIC = struct.pack("<I", 0xBEEFC0DE)
LMDB_AT = 16
"""Where an LMDB has its magic, after the header of its first page."""
TABLES = (".csv", ".tsv")
MOST_NAMES = 10_000
"""Names in a folder that are looked at."""
IN_FILES = {".h5": "hdf5", ".hdf5": "hdf5", ".parquet": "parquet", ".csv": "csv", ".mdb": "lmdb"}
"""Suffix of a file in a folder -> its kind."""


@dataclass(frozen=True)
class Held:
    """What is at a path."""

    words: str
    kind: str
    path: str

    @property
    def spec(self) -> str:
        return f"{self.kind}:{self.path}"

    def fits(self, spec: Spec) -> bool:
        """Returns whether `spec` is how it is written already."""
        is_kind = spec.kind == self.kind or {spec.kind, self.kind} == ALIKE
        return is_kind and spec.path == self.path


ALIKE = {"memmap", "jpeg"}
"""Forms of the same files: a folder of one is read as the other, too."""


def why_not(spec: Spec) -> str:
    """Returns what is at the path of `spec` and how it is written, where that is of another kind; ""
    where it is not, or is not known.
    """
    try:
        held = held_in(spec.path)
    except (OSError, ValueError):
        return ""
    if held is None or held.fits(spec):
        return ""
    if spec.kind == "hf" and held.path != spec.path:
        # `datasets` makes its own sense of a folder of tables.
        return ""
    return f"{spec.path} is {held.words}: {held.spec}"


def held_in(path: str) -> Held | None:
    """Returns what is at a path; None where that is not known. Raises `OSError`."""
    if os.path.isdir(path):
        return _in_folder(path)
    # Opening a pipe would wait for its writer.
    if os.path.isfile(path):
        return _in_file(path)
    return None


def _in_file(path: str) -> Held | None:
    with open(path, "rb") as file:
        first = file.read(FIRST_BYTES)
    if first.startswith(b"\x89HDF\r\n\x1a\n"):
        return Held("an HDF5 file", "hdf5", path)
    if first.startswith(b"PAR1"):
        return Held("a Parquet file", "parquet", path)
    if first[TAR_AT:].startswith(b"ustar"):
        return Held("a tar file", "webdataset", path)
    if first[LMDB_AT:].startswith(LMDB_MAGIC):
        return Held("an LMDB", "lmdb", path)
    if path.lower().endswith(TABLES):
        return Held("a table", "csv", path)
    return None


def _in_folder(path: str) -> Held | None:
    with os.scandir(path) as entries:
        seen = list(islice(entries, MOST_NAMES))
    names = sorted(entry.name for entry in seen)
    if DESCRIPTION in names:
        form = form_of(part_of(Path(path), 0))
        return Held(f"a folder of stored samples ({form})", form, path) if form else None
    if "data.mdb" in names:
        return Held("an LMDB", "lmdb", path)
    if "state.json" in names or "dataset_dict.json" in names:
        return Held("what Hugging Face's datasets saved", "hf", path)
    if any(name.endswith(".tar") for name in names):
        return Held("a folder of tar shards", "webdataset", path)
    if any(_has_images(folder) for folder in _class_folders(path, names)):
        return Held("a folder of images", "folder", path)
    for name in names:
        kind = IN_FILES.get(os.path.splitext(name)[1].lower())
        if kind:
            return Held(f"a folder with {name} in it", kind, os.path.join(path, name))
    return None


def _class_folders(path: str, names: list[str]) -> Iterator[str]:
    """Yields what may be the folder of a class, of a split too."""
    for name in names:
        below = os.path.join(path, name)
        if os.path.isdir(below):
            yield below
            if name in ("train", *TEST_SPLITS):
                with os.scandir(below) as entries:
                    yield from sorted(entry.path for entry in entries if entry.is_dir())


def _has_images(folder: str) -> bool:
    with os.scandir(folder) as entries:
        seen = islice(entries, MOST_NAMES)
        return any(os.path.splitext(entry.name)[1].lower() in SUFFIXES for entry in seen)
