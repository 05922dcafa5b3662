"""The samples of a Dataset in Arrow, as Hugging Face's `datasets` keeps them."""

from pathlib import Path

import datasets
from datasets.arrow_writer import ArrowWriter

from vitprof.watch.forms.stored import Names, Read, Rows, Stored


def write(rows: Rows, folder: Path, names: Names) -> None:
    """Writes samples to a file in a folder."""
    features = datasets.Features(dict.fromkeys(names, datasets.Value("large_binary")))
    with ArrowWriter(features=features, path=str(folder / "samples.arrow")) as writer:
        for row in rows:
            writer.write(dict(zip(names, row, strict=True)))
        writer.finalize()


class Samples(Stored):
    """Reads samples by `datasets.Dataset`."""

    def open_part(self, folder: Path) -> Read:
        part = datasets.Dataset.from_file(str(folder / "samples.arrow"))
        return lambda number: [sample[name] for sample in [part[number]] for name in self.names]
