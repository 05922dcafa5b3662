"""Samples in a file each, by `torch.save`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitprof.forms.contract import Names


class Writer:
    """Writes a file for each sample."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._folder = folder
        self._names = names
        self._n = 0

    def add(self, values: Sequence[bytes]) -> None:
        tensors = [torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for data in values]
        sample = dict(zip(self._names, tensors, strict=True))
        torch.save(sample, self._folder / f"{self._n}.pt")
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
        sample = torch.load(self._folder / f"{number}.pt", weights_only=True)
        return [memoryview(sample[name].numpy()) for name in self._names]

    def close(self) -> None:
        """Does nothing: no file is open."""
