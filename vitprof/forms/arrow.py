"""Samples in Arrow, as Hugging Face's `datasets` keeps them.

That is imported where it is used: it reads at that moment whether it may use the network.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitprof.forms.contract import Found, Names, Refuse
from vitprof.forms.gate import Gate

FILE = "samples.arrow"


class Writer:
    """Writes samples to a file."""

    def __init__(self, folder: Path, names: Names) -> None:
        import datasets
        from datasets.arrow_writer import ArrowWriter

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
        import datasets

        self._names = names
        self._samples: Any = datasets.Dataset.from_file(str(folder / FILE))

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, number: int) -> Sequence[Any]:
        sample = self._samples[number]
        return [sample[name] for name in self._names]

    def close(self) -> None:
        self._samples = None


def find(path: str, options: Mapping[str, str], refuse: Refuse, gate: Gate) -> Found:
    """Returns the samples that `save_to_disk` of Hugging Face's datasets wrote, or that
    `load_dataset` reads from a folder.
    """
    from vitprof.forms.tables import LABEL, column, encoded

    with offline():
        import datasets

        folder = Path(path)
        saved = (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()
        load = datasets.load_from_disk if saved else datasets.load_dataset
        whole = load(str(folder))
    wanted = options.get("split", "")
    parts: dict[str, Any] = dict(whole) if isinstance(whole, dict) else {wanted: whole}
    if wanted and len(parts) > 1:
        if wanted not in parts:
            refuse(f"it has no split {wanted!r}; it has {', '.join(parts)}")
        parts = {"": parts[wanted]}
    first = next(iter(parts.values()))
    kinds = {name: type(kind).__name__ for name, kind in first.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    image = column("image", images, list(kinds), options, refuse)
    class_labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    label = column("label", [*class_labels, *LABEL], list(kinds), options, refuse)
    # Images stay encoded: decoding is what a run measures.
    raw = {
        split: part.cast_column(image, datasets.Image(decode=False))
        for split, part in parts.items()
    }
    samples = [
        (split, str(value), (split, at))
        for split, part in raw.items()
        for at, value in enumerate(part[label])
    ]
    return Found(samples, lambda key: encoded(raw[key[0]][key[1]][image], folder, gate))


@contextmanager
def offline() -> Iterator[None]:
    """Keeps Hugging Face's packages from the network."""
    before = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
