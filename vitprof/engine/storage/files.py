"""One image file for each sample: PNG files made from an IDX data set, or a data set's own JPEG
files.
"""

import json
import os
import pickle
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitprof.config.parts import BLOCK, blocks, prepared_as
from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine.storage import arrays, contract
from vitprof.engine.storage.contract import (
    Format,
    Location,
    SplitFacts,
    SplitWriter,
    StoredSplit,
    image_bytes,
)
from vitprof.engine.storage.source import open_source
from vitprof.errors import DataError, SampleError
from vitprof.forms.contract import Unreadable
from vitprof.forms.folder import read_file, read_rows, write_file
from vitprof.forms.memmap import NpyWriter, map_npy
from vitprof.forms.pt import load, save, save_large

FILES_IN_A_FOLDER = 1000
"""Folders of very many files are slow to list and to add to."""


def sample_path(index: int, name: str, *, train: bool) -> str:
    """Returns the path of the file of sample `index` of a split, under the storage's root: folders
    of 1,000 files.
    """
    split = "train" if train else "test"
    return f"images/{split}-{index // FILES_IN_A_FOLDER:03d}/{name}"


class FolderWriter(SplitWriter):
    """A writer of one file for each sample, at its `sample_path`; no file stays open."""

    def __init__(self, directory: Path, split: SplitFacts, suffix: str = "") -> None:
        self._directory = directory
        self._split = split
        self._suffix = suffix

    def add(self, start: int, images: NDArray[np.uint8] | list[bytes]) -> None:
        for i, image in enumerate(images, start):
            name = sample_path(i, self._split.ids[i], train=self._split.name == "train")
            path = f"{self._directory}/{name}{self._suffix}"
            if i == start or i % FILES_IN_A_FOLDER == 0:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            write_file(path, image if isinstance(image, bytes) else image.tobytes())


RAW_FORMAT = Format(
    1, "pixels", FolderWriter, lambda info: blocks(image_bytes(info)), resumable=True
)


def _paths(root: Path, train: bool, suffix: str = "") -> list[str]:
    names = contract.read_ids(root, train=train)
    return [f"{root}/{sample_path(i, name, train=train)}{suffix}" for i, name in enumerate(names)]


class RawFilesStorage(StoredSplit):
    """Pixels in one file for each sample, opened, read into its row of the batch and closed."""

    def __init__(self, info: DatasetInfo, location: Location, train: bool) -> None:
        super().__init__(info, location, train)
        self.labels = contract.read_labels(location.root, train=train)
        self._paths = _paths(location.root, train)

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = self._room(indices, out)
        if not len(indices):
            return out
        # view: a copy would leave `out` as it was.
        rows = out.view(len(indices), -1).numpy()
        try:
            read_rows(self._paths, indices.tolist(), rows)
        except Unreadable as error:
            what = f"{self._paths[error.number]} {error.why}"
            raise self._unusable(what, SampleError) from error
        self._location.reading(out.nbytes, len(indices))
        return out


# A digit's PNG is about 500 bytes long: one block.
IMAGE_FORMAT = Format(
    1, "encoded", partial(FolderWriter, suffix=".png"), lambda info: BLOCK, resumable=True
)


class FilesStorage(StoredSplit):
    """Encoded images in one file each, opened, read whole and closed for each sample."""

    def __init__(self, info: DatasetInfo, location: Location, train: bool) -> None:
        super().__init__(info, location, train)
        if prepared_as("files", info.kind) is None:
            source = open_source(info, location.root, train=train)
            self.labels = torch.from_numpy(source.labels)
            self._paths = [str(source.path(i)) for i in range(len(source.ids))]  # type: ignore[attr-defined]
            return
        self.labels = contract.read_labels(location.root, train=train)
        self._paths = _paths(location.root, train, ".png")

    def read_encoded(self, index: int) -> bytes:
        path = self._paths[index]
        try:
            encoded = read_file(path)
        except OSError as error:
            what = f"{path} cannot be read ({error.strerror or error})"
            raise self._unusable(what, SampleError) from error
        except ValueError as error:
            raise self._unusable(f"{path} {error}", SampleError) from error
        self._location.reading(len(encoded), 1)
        return encoded

    def name_of(self, index: int) -> str:
        return self._paths[index]


PARTITION = "partition.json"
"""{"train": [IDs], "validation": [IDs]}, as in the tutorial; "validation" is the test split."""
LABELS = "labels.json"
"""{ID: label} of both splits."""
PARTITIONS = {"train": "train", "test": "validation"}
"""Split -> its name in the partition."""
OVERHEAD_BYTES = 1500
"""Approximate size of what torch.save adds to the pixels."""


class PtWriter(SplitWriter):
    """A writer of data/<id>.pt for each sample, a uint8 tensor (height, width, channels); then
    partition and labels.
    """

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        self._directory = directory
        self._split = split
        (directory / "data").mkdir(exist_ok=True)

    def add(self, start: int, images: NDArray[np.uint8]) -> None:
        names = self._split.ids[start : start + len(images)]
        tensors = torch.from_numpy(np.ascontiguousarray(images))
        for name, image in zip(names, tensors, strict=True):
            # A view would save the whole chunk.
            save(f"{self._directory}/data/{name}.pt", image.clone())

    def finish(self) -> None:
        split = self._split
        _add_to(self._directory / PARTITION, {PARTITIONS[split.name]: split.ids})
        _add_to(self._directory / LABELS, dict(zip(split.ids, split.labels.tolist(), strict=True)))


def _add_to(path: Path, entries: dict[str, Any]) -> None:
    known: dict[str, Any] = {}
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(known | entries), encoding="utf-8")
    os.replace(temporary, path)


PT_FORMAT = Format(
    1, "pixels", PtWriter, lambda info: blocks(image_bytes(info) + OVERHEAD_BYTES), resumable=True
)


class _Loaded(StoredSplit):
    """The common part of storages that are read with `torch.load`."""

    def _load(
        self, path: str, error_type: type[DataError] = DataError, *, mapped: bool = False
    ) -> Any:
        """Returns what is in a .pt file.

        Its errors become an `error_type` with a one-line message.
        """
        try:
            return load(path, mapped=mapped)
        except Exception as error:
            # Parsers raise anything on a damaged file.
            what = "is damaged and cannot be loaded"
            if isinstance(error, OSError):
                what = f"cannot be read ({error.strerror or error})"
            elif isinstance(error, pickle.UnpicklingError):
                what = "is refused: it holds more than tensors (a pickled object, which could run code), or is damaged"
            raise self._unusable(f"{path} {what}", error_type) from error


class PtStorage(_Loaded):
    """Pixels in one .pt file for each sample: torch.load for each, IDs from partition and labels as
    in the tutorial.
    """

    def __init__(self, info: DatasetInfo, location: Location, train: bool) -> None:
        super().__init__(info, location, train)
        partition = self._read_json(location.root / PARTITION)
        labels = self._read_json(location.root / LABELS)
        part = PARTITIONS[self._split]
        ids = partition.get(part)
        if not isinstance(ids, list):
            raise self._unusable(f"{location.root / PARTITION} has no {part!r}")
        for name in ids:
            if type(labels.get(name)) is not int:
                raise self._unusable(f"{location.root / LABELS} has no label for {name!r}")
        self._paths = [f"{location.root}/data/{name}.pt" for name in ids]
        self.labels = torch.tensor([labels[name] for name in ids], dtype=torch.int64)

    def _read_json(self, path: Path) -> dict[str, Any]:
        content = None
        with contract.reading(path), suppress(ValueError):
            content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise self._unusable(f"{path} is damaged (not a JSON object)")
        return content

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = self._room(indices, out)
        for row, i in zip(out, indices.tolist(), strict=True):
            path = self._paths[i]
            image = self._load(path, SampleError)
            is_pixels = isinstance(image, torch.Tensor) and image.dtype == torch.uint8
            if not is_pixels or image.shape != self.shape:
                what = f"{path} holds {_described(image)}, not uint8 {self.shape}"
                raise self._unusable(what, SampleError)
            row.copy_(image)
            if self._location.throttle is not None:
                self._location.reading(os.path.getsize(path), 1)
        return out


class SingleWriter(contract.RowsWriter):
    """A writer that collects a split's images in a .npy file and makes <split>.pt from it: never
    all in memory.
    """

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        self._split = split
        self._array = directory / f"{split.name}.npy"
        self._path = directory / f"{split.name}.pt"
        super().__init__(NpyWriter(self._array, (split.n, *split.shape)))

    def finish(self) -> None:
        self.close()
        images = torch.from_numpy(map_npy(self._array))
        labels = torch.from_numpy(self._split.labels.copy())
        content = {"images": images, "labels": labels, "ids": self._split.ids}
        save_large(self._path, content)
        self._array.unlink()


# Twice the pixels: while a split is being finished its array and its .pt file both exist.
SINGLE_FORMAT = Format(1, "pixels", SingleWriter, lambda info: 2 * image_bytes(info))


class SingleStorage(_Loaded):
    """All images of a split in one .pt file: {"images": (n, height, width, channels) uint8,
    "labels", "ids"}.
    """

    def __init__(self, info: DatasetInfo, location: Location, train: bool, *, mapped: bool) -> None:
        super().__init__(info, location, train)
        self._path = location.root / f"{self._split}.pt"
        self._mapped = mapped
        self._image_bytes = image_bytes(info)
        self._here()

    def _open(self) -> torch.Tensor:
        if not self._mapped and self._path.exists():
            n_bytes = self._path.stat().st_size
            arrays.ensure_memory(n_bytes, str(self._path))
            self._location.reading(n_bytes)
        self._location.reading(0, 1)
        content = self._load(str(self._path), mapped=self._mapped)
        parts: Any = content if isinstance(content, dict) else {}
        images: torch.Tensor = parts.get("images")
        labels: torch.Tensor = parts.get("labels")
        n = len(labels) if isinstance(labels, torch.Tensor) and labels.dim() else 0
        found = f"images {_described(images)} and labels {_described(labels)}"
        wanted = f"images uint8 {(n, *self.shape)} and labels int64 {(n,)}"
        if found != wanted:
            raise self._unusable(f"{self._path} holds {found}, not {wanted}")
        # Not a part of the mapped file.
        self.labels = labels.clone()
        return images

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        images = self._here()
        if self._mapped:
            self._location.reading(len(indices) * self._image_bytes)
            return torch.index_select(images, 0, indices, out=out)
        first = _first_of_run(indices)
        if first is not None:
            # Not gathered: the point of this storage.
            batch: torch.Tensor = images[first : first + len(indices)]
            if len(batch) == len(indices):
                return batch if out is None else out.copy_(batch)
        return torch.index_select(images, 0, indices, out=out)


open_mapped = partial(SingleStorage, mapped=True)
"""Opens <split>.pt mapped into memory: pages are read when first used."""
open_whole = partial(SingleStorage, mapped=False)
"""Opens <split>.pt read into memory; `read` of consecutive indices is a slice of it."""


def _first_of_run(indices: torch.Tensor) -> int | None:
    """Returns the first index if each is one more than the last; None if not, or if there are none."""
    n = len(indices)
    if not n:
        return None
    first = int(indices[0])
    # The ends first: they tell a shuffled batch from a run without a look at the others.
    if first < 0 or int(indices[-1]) - first != n - 1:
        return None
    if not torch.equal(indices, torch.arange(first, first + n)):
        return None
    return first


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
