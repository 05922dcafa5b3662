"""Samples in Arrow, as Hugging Face's `datasets` keeps them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
from datasets.arrow_writer import ArrowWriter

from vitprof.forms.contract import Names

FILE = "samples.arrow"


class Writer:
    """Writes samples to a file."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        features = datasets.Features(dict.fromkeys(names, datasets.Value("large_binary")))
        self._writer = ArrowWriter(features=features, path=str(folder / FILE))

    def add(self, values: Sequence[bytes]) -> None:
        self._writer.write(dict(zip(self._names, values, strict=True)))

    def finish(self) -> None:
        self._writer.finalize()

    def close(self) -> None:
        self._writer.close()


class Reader:
    """Reads samples by `datasets.Dataset`."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._names = names
        self._samples = datasets.Dataset.from_file(str(folder / FILE))

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, number: int) -> Sequence[Any]:
        sample = self._samples[number]
        return [sample[name] for name in self._names]

    def close(self) -> None:
        del self._samples
