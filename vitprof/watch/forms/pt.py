"""The samples of a Dataset in a file each, by `torch.save`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a folder."""
    for number, row in enumerate(rows):
        values = [torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for data in row]
        torch.save(dict(zip(names, values, strict=True)), folder / f"{number}.pt")


class Samples(Stored):
    """Reads samples by `torch.load`."""

    def open_part(self, folder: Path) -> Read:
        def read(number: int) -> Sequence[Any]:
            return [
                memoryview(value.numpy()) for value in torch.load(folder / f"{number}.pt").values()
            ]

        return read
