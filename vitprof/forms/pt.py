"""Samples in a file each, by `torch.save`."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitprof.forms.contract import Names
from vitprof.forms.folder import write_file


def save(path: str, content: Any) -> None:
    """Writes a small file. Raises `OSError`."""
    # By way of memory: torch.save to a path hides why a file could not be written.
    file = io.BytesIO()
    torch.save(content, file)
    write_file(path, file.getbuffer())


def save_large(path: Path, content: Any) -> None:
    """Writes a file that would not fit in memory once more. Raises `OSError`."""
    # An open file: torch.save to a path hides why a file could not be written.
    with path.open("wb") as file:
        torch.save(content, file)


def load(path: str | Path, *, mapped: bool = False) -> Any:
    """Returns what is in a file, which may be tensors and plain values alone: other pickled objects
    could run code. `mapped`: tensors are mapped into memory, and read when they are first used.
    """
    return torch.load(path, weights_only=True, map_location="cpu", mmap=mapped)


class Writer:
    """Writes a file for each sample."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._folder = folder
        self._names = names
        self._n = 0

    def add(self, values: Sequence[bytes]) -> None:
        tensors = [torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for data in values]
        sample = dict(zip(self._names, tensors, strict=True))
        save(f"{self._folder}/{self._n}.pt", sample)
        self._n += 1

    def finish(self) -> None:
        """Does nothing: each file is complete."""

    def close(self) -> None:
        """Does nothing: no file is open."""


class Reader:
    """Reads samples by `torch.load`."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._folder = folder
        self._names = names

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.glob("*.pt"))

    def read(self, number: int) -> Sequence[Any]:
        sample = load(self._folder / f"{number}.pt")
        return [memoryview(sample[name].numpy()) for name in self._names]

    def close(self) -> None:
        """Does nothing: no file is open."""
