"""How a storage is written: what a module of this package offers so that `prepare` can make its files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitprof.config.catalog import DatasetInfo


@dataclass(frozen=True)
class SplitFacts:
    """What a writer has to know about the split it writes."""

    name: str
    """"train" or "test"."""
    n: int
    shape: tuple[int, int, int]
    """(height, width, channels) of an image, where pixels are written."""
    ids: list[str]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """Some samples of a split, in order. One of `pixels` and `encoded` is there, as the writer's module asks for."""

    ids: list[str]
    pixels: NDArray[np.uint8] | None
    """(n, height, width, channels)"""
    encoded: list[bytes] | None


class SplitWriter:
    """Writes one split into a directory; the training split comes first. Every method may raise `OSError`."""

    def add(self, start: int, chunk: Chunk) -> None:
        """Writes a chunk whose first sample is number `start`. Chunks come in order.

        Of a resumable format the chunks of an interrupted try may come twice.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Writes what can be written only once all samples are added. Of a resumable format it may come twice."""

    def close(self) -> None:
        """Closes what is open. Comes last, also after an error."""


@dataclass(frozen=True)
class Format:
    """How a storage is written."""

    version: int
    """Rises with every change to what is written: storages on disk are then made again."""
    needs: Literal["pixels", "encoded"]
    open_writer: Callable[[Path, SplitFacts], SplitWriter]
    """(directory, facts) -> writer of one split."""
    bytes_a_sample: Callable[[DatasetInfo], float]
    """Room a sample takes on disk, about; asked before anything is written."""
    resumable: bool = False
    """Whether the next try goes on where one was interrupted. Many small files do: 70,000 take 7 to 19 s. What is in
    one file is started over: the whole of `digits` takes 0.1 to 0.3 s."""


def image_bytes(info: DatasetInfo) -> int:
    """Returns the bytes of one image as uint8 pixels."""
    return info.image_size**2 * info.channels


FORMATS: dict[str, tuple[str, str]] = {
    "files": ("files", "FORMAT"),
    "raw-files": ("rawfiles", "FORMAT"),
    "pt": ("pt", "FORMAT"),
    "pt-single": ("pt", "SINGLE_FORMAT"),
    "hdf5": ("hdf5", "CONTIGUOUS_FORMAT"),
    "hdf5-chunked": ("hdf5", "CHUNKED_FORMAT"),
    "hdf5-encoded": ("hdf5", "ENCODED_FORMAT"),
    "lmdb": ("lmdb", "PIXEL_FORMAT"),
    "lmdb-encoded": ("lmdb", "ENCODED_FORMAT"),
    "memmap": ("memmap", "FORMAT"),
}
"""Storage -> module of `storage` and the name of its `Format` there. Imported when needed: h5py takes 0.1 s."""


def format_of(storage: str) -> Format:
    """Returns how the storage of that name is written."""
    module, name = FORMATS[storage]
    form: Format = getattr(importlib.import_module(f"vitprof.engine.storage.{module}"), name)
    return form
