"""How a storage is written: what a module of this package defines for `prepare` to make its files."""

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
    """Facts about the split that a writer writes."""

    name: str
    """"train" or "test"."""
    n: int
    shape: tuple[int, int, int]
    """(height, width, channels) of an image, where pixels are written."""
    ids: list[str]
    labels: NDArray[np.int64]
    """(n,)"""


@dataclass(frozen=True)
class Chunk:
    """Some samples of a split, in order. One of `pixels` and `encoded` is set: the one that `Format.needs` names."""

    ids: list[str]
    pixels: NDArray[np.uint8] | None
    """(n, height, width, channels)"""
    encoded: list[bytes] | None


class SplitWriter:
    """A writer of one split into a directory; the training split comes first. Every method may raise `OSError`."""

    def add(self, start: int, chunk: Chunk) -> None:
        """Writes a chunk whose first sample is number `start`. Chunks are added in order.

        In a resumable format, chunks of an interrupted try may be added again.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Writes what can only be written once all samples are added. May be called again in a resumable format."""

    def close(self) -> None:
        """Closes what is open. Called last, also after an error."""


@dataclass(frozen=True)
class Format:
    """How a storage is written."""

    version: int
    """Raised with every change to what is written: storages on disk are then made again."""
    needs: Literal["pixels", "encoded"]
    """The field of a `Chunk` that its writer takes."""
    open_writer: Callable[[Path, SplitFacts], SplitWriter]
    """(directory, facts) -> writer of one split."""
    bytes_a_sample: Callable[[DatasetInfo], float]
    """Approximate room that a sample takes on disk; free space is checked with it before anything is written."""
    resumable: bool = False
    """Whether a try continues where the last one was interrupted. Formats of many small files do: 70,000 files take 7
    to 19 s. Those of one file start over: the whole of `digits` takes 0.1 to 0.3 s."""


def image_bytes(info: DatasetInfo) -> int:
    """Returns the size of one image as uint8 pixels, in bytes."""
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
"""Storage -> module of `storage`, and the name of its `Format` there. Imported when needed: h5py takes 0.1 s."""


def format_of(storage: str) -> Format:
    """Returns the format of the storage called `storage`."""
    module, name = FORMATS[storage]
    form: Format = getattr(importlib.import_module(f"vitprof.engine.storage.{module}"), name)
    return form
