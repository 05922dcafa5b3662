"""Samples in WebDataset's shards.

They are read by their index here. `webdataset.WebDataset` reads shards in turn instead: good for
slow drives and networks, but in another order.
"""

import io
import itertools
import json
import math
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitprof.forms.contract import Found, Names, Refuse, Unreadable, counted
from vitprof.forms.gate import Gate

SHARD = 10_000
"""Samples in a shard: about 1 GB of photos, as WebDataset's documentation advises."""
HEADER_BYTES = 512
"""The header of a member with a short name."""
INDEX = "index.npy"
"""(samples, values, 2) int64: where each value begins in its shard, and its bytes."""


def shard_of(folder: Path, number: int) -> Path:
    """Returns the path of a shard, numbered from 0."""
    return folder / f"{number:06d}.tar"


class Writer:
    """Writes samples to shards: a member for each value, named as the sample and the value."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._folder = folder
        self._names = names
        self._places: list[list[tuple[int, int]]] = []
        self._shard: tarfile.TarFile | None = None

    def add(self, values: Sequence[bytes]) -> None:
        n = len(self._places)
        if n % SHARD == 0 or self._shard is None:
            self.close()
            self._shard = tarfile.open(shard_of(self._folder, n // SHARD), "w")  # noqa: SIM115
        places = []
        for name, data in zip(self._names, values, strict=True):
            places.append((self._shard.offset + HEADER_BYTES, len(data)))
            member = tarfile.TarInfo(f"{n:09d}.{name}")
            member.size = len(data)
            self._shard.addfile(member, io.BytesIO(data))
        self._places.append(places)

    def finish(self) -> None:
        np.save(self._folder / INDEX, np.array(self._places, np.int64))

    def close(self) -> None:
        if self._shard is not None:
            self._shard.close()


class Reader:
    """Reads each value with one `pread`, at the position that the index gives."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._index = np.load(folder / INDEX, allow_pickle=False)
        if self._index.dtype != np.int64 or self._index.shape[1:] != (len(names), 2):
            raise ValueError(f"{INDEX} holds {self._index.dtype} {self._index.shape}")
        n_shards = math.ceil(len(self) / SHARD)
        self._shards = [io.FileIO(shard_of(folder, number)) for number in range(n_shards)]

    def __len__(self) -> int:
        return len(self._index)

    def read(self, number: int) -> Sequence[Any]:
        shard = self._shards[number // SHARD].fileno()
        values = []
        for begin, size in self._index[number].tolist():
            data = os.pread(shard, size, begin)
            if len(data) != size:
                raise Unreadable(number, "is cut: its shard is too short")
            values.append(data)
        return values

    def close(self) -> None:
        for shard in self._shards:
            shard.close()


# Shards of the user's own.

BRACES = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
"""A range of numbers in a pattern, such as {0000..0009}."""
MOST_SHARDS = 100_000
"""A pattern of more is taken for a slip: listing it would fill the memory."""
MOST_LABEL_BYTES = 1 << 20
"""Of a member that says a label. It is read whole, and a header may say any size."""


def shards_of(pattern: str, refuse: Refuse) -> list[str]:
    """Returns the paths that `shard-{0000..0009}.tar` names, or the tar files of a folder."""
    # Text, first and last number, text, first and last number, text ...
    texts = BRACES.split(pattern)
    ranges = list(zip(texts[1::3], texts[2::3], strict=True))
    for first, last in ranges:
        if int(last) < int(first):
            refuse(f"{{{first}..{last}}} counts down; write {{{last}..{first}}}")
    n_shards = math.prod(int(last) - int(first) + 1 for first, last in ranges)
    if n_shards > MOST_SHARDS:
        refuse(f"it names more than {MOST_SHARDS:,} shards")
    # As many digits as the range was written with.
    numbers = [
        [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)] for first, last in ranges
    ]
    shards = []
    for chosen in itertools.product(*numbers):
        path = "".join(map("".join, zip(texts[::3], [*chosen, ""], strict=True)))
        if os.path.isdir(path):
            shards += sorted(str(shard) for shard in Path(path).glob("*.tar"))
        else:
            shards.append(path)
    return shards


def find(path: str, options: Mapping[str, str], refuse: Refuse, gate: Gate) -> Found:
    """Returns the samples of tar shards as WebDataset writes them: the members of a sample follow
    each other.

    They share the name up to the first dot, and the rest says what they are: `.jpg`, `.cls`,
    `.json`. Samples are read from the shards by their offset, so the shards must not be compressed.
    """
    shards = shards_of(path, refuse)
    missing = [shard for shard in shards if not os.path.exists(shard)]
    if missing:
        are = "is" if len(shards) == 1 else "are"
        refuse(f"{missing[0]} does not exist ({counted(len(shards), 'shard')} {are} named)")
    samples: list[tuple[str, str, tuple[str, int, int]]] = []
    unlabelled = 0
    try:
        for shard in shards:
            gate.admit(shard)
        found = [sample for shard in shards for sample in samples_of(shard, gate)]
    except tarfile.TarError as error:
        refuse(f"it cannot be read ({type(error).__name__}: {error})")
    for sample in found:
        if "image" in sample and "label" in sample:
            samples.append(("", sample["label"], sample["image"]))
        elif sample:
            unlabelled += 1

    def read(key: tuple[str, int, int]) -> bytes:
        shard, offset, size = key
        with open(shard, "rb") as file:
            file.seek(offset)
            return file.read(size)

    notes = []
    if unlabelled:
        have = "has" if unlabelled == 1 else "have"
        samples_without = f"{counted(unlabelled, 'sample')} {have} no image"
        notes.append(f"{samples_without}, or no .cls and no label in .json: left out")
    return Found(samples, read, notes)


def samples_of(shard: str, gate: Gate) -> Iterator[dict[str, Any]]:
    """Yields the samples of a tar file: "image" (shard, offset, bytes) and "label", as far as they
    have them. Members that are links are none.
    """
    from vitprof.forms.image_files import SUFFIXES

    n_bytes = os.path.getsize(shard)
    with tarfile.open(shard, "r:") as file:
        sample: dict[str, Any] = {}
        before = ""
        for member in file:
            gate.alive()
            if member.size < 0:
                # The next member would be looked for in front of it, again and again.
                raise ValueError(f"a member has {member.size:,} bytes")
            is_whole = member.offset_data + member.size <= n_bytes
            if not member.isfile() or member.issparse() or not is_whole:
                continue
            kind = member.name.rpartition("/")[2].partition(".")[2]
            stem = member.name[: len(member.name) - len(kind)]
            if stem != before:
                yield sample
                sample = {}
                before = stem
            if f".{kind.lower()}" in SUFFIXES:
                sample["image"] = (shard, member.offset_data, member.size)
            elif kind in ("cls", "json") and member.size <= MOST_LABEL_BYTES:
                content = file.extractfile(member)
                label = label_of(kind, content.read()) if content is not None else ""
                if label:
                    sample["label"] = label
        yield sample


def label_of(kind: str, data: bytes) -> str:
    """Returns the label in a `.cls` member, which is the label, or in a `.json` member, which has
    it; "" where there is none.
    """
    try:
        text = data.decode()
        if kind == "cls":
            return text.strip()
        said = json.loads(text)
    except (ValueError, RecursionError):
        # No text, no JSON, or nested deeper than Python reads.
        return ""
    return str(said.get("label", "")) if isinstance(said, dict) else ""
