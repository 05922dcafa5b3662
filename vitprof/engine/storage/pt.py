"""PyTorch's own files: one .pt for each sample with string IDs, as tutorials have them, or one for a whole split."""

from __future__ import annotations

import io
import json
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.storage import arrays
from vitprof.engine.storage.arrays import ensure_memory
from vitprof.engine.storage.contract import Format, Place, SplitFacts, SplitWriter, StoredSplit, image_bytes
from vitprof.engine.storage.files import on_disk, write_file
from vitprof.errors import DataError, SampleError

PARTITION = "partition.json"
"""{"train": [IDs], "validation": [IDs]}, as in the tutorial; "validation" is the test split."""
LABELS = "labels.json"
"""{ID: label} of both splits."""
PARTITIONS = {"train": "train", "test": "validation"}
OVERHEAD_BYTES = 1500
"""Approximate size of what torch.save adds to the pixels."""


class Writer(SplitWriter):
    """A writer of data/<id>.pt for each sample, a uint8 tensor (height, width, channels); then partition and labels."""

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        self._directory = directory
        self._split = split
        (directory / "data").mkdir(exist_ok=True)

    def add(self, start: int, images: NDArray[np.uint8]) -> None:
        for name, image in zip(self._split.ids[start:], torch.from_numpy(np.ascontiguousarray(images)), strict=False):
            file = io.BytesIO()  # torch.save to a path hides why a file could not be written
            torch.save(image.clone(), file)  # a view would save the whole chunk
            write_file(f"{self._directory}/data/{name}.pt", file.getbuffer())

    def finish(self) -> None:
        split = self._split
        _add_to(self._directory / PARTITION, {PARTITIONS[split.name]: split.ids})
        _add_to(self._directory / LABELS, dict(zip(split.ids, split.labels.tolist(), strict=True)))


def _add_to(path: Path, entries: dict[str, Any]) -> None:
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(known | entries), encoding="utf-8")
    os.replace(temporary, path)


FORMAT = Format(1, "pixels", Writer, lambda info: on_disk(image_bytes(info) + OVERHEAD_BYTES), resumable=True)


class PtStorage(StoredSplit):
    """Pixels in one .pt file for each sample: torch.load for each, IDs from partition and labels as in the tutorial."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool) -> None:
        super().__init__(info, place, train)
        partition, labels = (self._read_json(place.root / name) for name in (PARTITION, LABELS))
        part = PARTITIONS[self._split]
        ids = partition.get(part)
        if not isinstance(ids, list):
            raise DataError(f"{place.root / PARTITION} has no {part!r}; {self._remedy}")
        for name in ids:
            if type(labels.get(name)) is not int:
                raise DataError(f"{place.root / LABELS} has no label for {name!r}; {self._remedy}")
        self._paths = [f"{place.root}/data/{name}.pt" for name in ids]
        self.labels = torch.tensor([labels[name] for name in ids], dtype=torch.int64)

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror or error}); {self._remedy}") from error
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise DataError(f"{path} is damaged (not a JSON object); {self._remedy}")
        return content

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        out = self._room(indices, out)
        for row, i in zip(out, indices.tolist(), strict=True):
            path = self._paths[i]
            image = _load(path, SampleError, self._remedy)
            if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.shape != self.shape:
                raise SampleError(f"{path} holds {_described(image)}, not uint8 {self.shape}; {self._remedy}")
            row.copy_(image)
            if self._place.throttle is not None:
                self._place.reading(os.path.getsize(path), 1)
        return out


class SingleWriter(arrays.Writer):
    """A writer that collects a split's images in a .npy file and makes <split>.pt from it: never all in memory."""

    def __init__(self, directory: Path, split: SplitFacts) -> None:
        super().__init__(directory, split)
        self._split = split
        self._array, self._path = directory / f"{split.name}.npy", directory / f"{split.name}.pt"

    def finish(self) -> None:
        self.close()
        images = torch.from_numpy(np.load(self._array, mmap_mode="c", allow_pickle=False))
        labels = torch.from_numpy(self._split.labels.copy())
        with self._path.open("wb") as file:  # torch.save to a path hides why a file could not be written
            torch.save({"images": images, "labels": labels, "ids": self._split.ids}, file)
        self._array.unlink()


# Twice the pixels: while a split is being finished its array and its .pt file both exist.
SINGLE_FORMAT = Format(1, "pixels", SingleWriter, lambda info: 2 * image_bytes(info))


class SingleStorage(StoredSplit):
    """All images of a split in one .pt file: {"images": (n, height, width, channels) uint8, "labels", "ids"}."""

    def __init__(self, info: DatasetInfo, place: Place, train: bool, *, mapped: bool) -> None:
        super().__init__(info, place, train)
        self._path = place.root / f"{self._split}.pt"
        self._mapped = mapped
        self._image_bytes = image_bytes(info)
        self._here()

    def _open(self) -> Tensor:
        remedy = self._remedy
        if not self._mapped and self._path.exists():
            n_bytes = self._path.stat().st_size
            ensure_memory(n_bytes, str(self._path))
            self._place.reading(n_bytes)
        self._place.reading(0, 1)
        content = _load(str(self._path), DataError, remedy, mmap=self._mapped)
        images, labels = (content.get(name) if isinstance(content, dict) else None for name in ("images", "labels"))
        if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
            raise DataError(f"{self._path} holds no images and labels; {remedy}")
        if labels.dtype != torch.int64 or labels.dim() != 1:
            raise DataError(f"{self._path} holds labels {_described(labels)}, not int64 with one axis; {remedy}")
        wanted = (len(labels), *self.shape)
        if images.dtype != torch.uint8 or images.shape != wanted:
            raise DataError(f"{self._path} holds images {_described(images)}, not uint8 {wanted}; {remedy}")
        self.labels = labels.clone()  # not a part of the mapped file
        return images

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        images = self._here()
        if self._mapped:
            self._place.reading(len(indices) * self._image_bytes)
        elif (first := _first_of_run(indices)) is not None:
            batch: Tensor = images[first : first + len(indices)]  # sliced, not gathered: the point of this storage
            if len(batch) == len(indices):
                return batch if out is None else out.copy_(batch)
        return torch.index_select(images, 0, indices, out=out)


open_mapped = partial(SingleStorage, mapped=True)
"""Opens <split>.pt mapped into memory: pages are read when first used."""
open_whole = partial(SingleStorage, mapped=False)
"""Opens <split>.pt read into memory; `read` of consecutive indices is a slice of it."""


def _first_of_run(indices: Tensor) -> int | None:
    """Returns the first index if each is one more than the last; None if not, or if there are none."""
    n = len(indices)
    if n == 0:
        return None
    first, last = int(indices[0]), int(indices[-1])
    if first < 0 or last - first != n - 1 or not bool((indices[1:] - indices[:-1] == 1).all()):
        return None
    return first


def _load(path: str, error_type: type[DataError], remedy: str, **options: Any) -> Any:
    """Returns `torch.load(path, weights_only=True)`. Its errors become an `error_type` with a one-line message."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu", **options)
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise error_type(f"{path} {reason}; {remedy}") from error
    except pickle.UnpicklingError as error:
        raise error_type(
            f"{path} is refused: it holds more than tensors (a pickled object, which could run code), or is damaged; "
            f"{remedy}"
        ) from error
    except Exception as error:  # parsers raise anything on a damaged file
        raise error_type(f"{path} is damaged and cannot be loaded; {remedy}") from error


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
