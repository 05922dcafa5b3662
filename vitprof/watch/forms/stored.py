"""The samples of a Dataset, stored.

`convert(dataset, folder, write)` writes them once; `Samples(folder, transform)` is a Dataset that reads them.
"""

import ast
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

PART = 4096
"""Samples in a part: a folder of its own, so that a conversion goes on where it was ended."""
TEXTS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "str": str,
}
TEXTS["NoneType"] = lambda text: None
Rows = Iterable[Sequence[bytes]]
"""Samples, each a sequence of its values."""
Names = Sequence[str]
"""Of the values."""
Read = Callable[[int], Sequence[Any]]
"""Reads the values of a sample by its number in a part, as bytes or views of them."""
MODES = ("1", "L", "LA", "RGB", "RGBA", "CMYK", "I", "F", "I;16")
"""Of PIL images whose bytes are all that they are: not those with a palette."""


class Encoded(bytes):
    """The bytes of an image file, to be stored as they are, and decoded when they are read."""

    mode = "RGB"


class Stored(Dataset[Any]):
    """Reads samples. `transform` gets the value at the place where that of the Dataset was; None: as it was stored."""

    def __init__(self, folder: str | Path, transform: Callable[[Any], Any] | None = None) -> None:
        self.folder, self.transform = Path(folder), transform
        facts = json.loads((self.folder / "stored.json").read_text(encoding="utf-8"))
        self.n, self.part, self.at = facts["n"], facts["part"], facts["at"]
        self.kinds, self.names = facts["kinds"], facts["names"]
        self.tree = ast.literal_eval(facts["tree"])
        self.open: dict[int, Read] = {}
        self.process = 0

    def open_part(self, folder: Path) -> Read:
        """Returns what reads the samples of a part."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.n)

    def __getitem__(self, index: int) -> Any:
        if self.process != os.getpid():  # a worker opens the files itself
            self.open, self.process = {}, os.getpid()
        part, number = divmod(index, self.part)
        if part not in self.open:
            self.open[part] = self.open_part(self.folder / f"part-{part:05d}")
        data = self.open[part](number)
        values = [from_bytes(kind, each) for kind, each in zip(self.kinds, data, strict=True)]
        if self.transform is not None:
            values[self.at] = self.transform(values[self.at])
        return rebuilt(self.tree, values)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "open": {}, "process": 0}


def flattened(sample: Any, values: list[Any]) -> Any:
    """Adds the values in dicts, lists and tuples of a sample to `values`; returns the same with their numbers."""
    if type(sample) is dict:
        return {key: flattened(value, values) for key, value in sample.items()}
    if type(sample) in (list, tuple):
        return type(sample)(flattened(value, values) for value in sample)
    values.append(sample)
    return len(values) - 1


def rebuilt(tree: Any, values: Sequence[Any]) -> Any:
    """Returns the sample of which `flattened` gave the tree."""
    if isinstance(tree, dict):
        return {key: rebuilt(value, values) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(rebuilt(value, values) for value in tree)
    return values[tree]


def kind_of(value: Any) -> str:
    """Returns what a value is, as `from_bytes` needs it: "tensor float32 3", "image RGB", "int", and so on."""
    if isinstance(value, torch.Tensor):
        return f"tensor {str(value.dtype).removeprefix('torch.')} {value.dim()}"
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return f"{'array' if isinstance(value, np.ndarray) else 'scalar'} {value.dtype.str} {value.ndim}"
    if isinstance(value, Encoded):
        return f"file {value.mode}"
    if getattr(value, "mode", None) in MODES and hasattr(value, "getbands"):
        return f"image {value.mode}"
    if type(value) is bytes or type(value).__name__ in TEXTS:
        return type(value).__name__
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def to_bytes(value: Any) -> bytes:
    """Returns a value as bytes: of arrays and images, the sizes of the dimensions first."""
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().flatten()
        return np.array(value.shape, "<i4").tobytes() + flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, (np.ndarray, np.generic)):
        return np.array(value.shape, "<i4").tobytes() + value.tobytes()
    if hasattr(value, "getbands"):
        return np.array(value.size, "<i4").tobytes() + bytes(value.tobytes())
    return str(value).encode("utf-8", "surrogatepass")


def from_bytes(kind: str, data: Any) -> Any:
    """Returns the value; `data`: bytes or a view of them."""
    name, _, rest = kind.partition(" ")
    if name in TEXTS:
        return TEXTS[name](bytes(data).decode("utf-8", "surrogatepass"))
    if name == "bytes":
        return bytes(data)
    if name in ("file", "image"):
        from PIL import Image

        if name == "file":
            return Image.open(io.BytesIO(data)).convert(rest)
        width, height = np.frombuffer(data, "<i4", 2)
        return Image.frombytes(rest, (int(width), int(height)), bytes(memoryview(data)[8:]))
    dtype, dimensions = rest.split()
    begin = 4 * int(dimensions)
    shape = np.frombuffer(data, "<i4", int(dimensions)).tolist()
    own = bytearray(memoryview(data)[begin:])  # which may be written to
    if name == "tensor":
        kind_of_number = getattr(torch, dtype)
        flat = (
            torch.frombuffer(own, dtype=kind_of_number)
            if own
            else torch.empty(0, dtype=kind_of_number)
        )
        return flat.reshape(shape)
    array = np.frombuffer(own, dtype).reshape(shape)
    return array if name == "array" else array[()]


Write = Callable[[Rows, Path, Names], None]
"""Writes samples to an empty folder."""


def convert(
    dataset: Any,
    folder: str | Path,
    write: Write,
    indices: Sequence[int] | None = None,
    at: int = 0,
    part: int = PART,
    what: str = "",
) -> None:
    """Writes the samples of `dataset`: all, or those of `indices`. `at`: the value that `Samples` is to transform;
    `what`: what else was done to them, which must be the same for an earlier attempt to go on.

    A part that is there is not written again. Raises `ValueError` for samples that are not alike, and where `folder`
    holds other ones, and `TypeError` for values that cannot be stored.
    """
    folder, indices = Path(folder), range(len(dataset)) if indices is None else indices
    values: list[Any] = []
    tree = flattened(dataset[indices[0]], values)
    kinds = [kind_of(value) for value in values]
    names = [f"{i}.{'jpg' if kind.startswith('file') else 'bin'}" for i, kind in enumerate(kinds)]
    facts = {
        "n": len(indices),
        "part": part,
        "kinds": kinds,
        "names": names,
        "at": at,
        "tree": repr(tree),
    }
    facts["what"] = what
    known = folder / "stored.json"
    if known.exists() and json.loads(known.read_text(encoding="utf-8")) != facts:
        raise ValueError(f"{folder} holds other samples")
    folder.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(facts), encoding="utf-8")

    def rows(chosen: Sequence[int]) -> Iterator[list[bytes]]:
        for index in chosen:
            values: list[Any] = []
            tree = repr(flattened(dataset[index], values))
            if tree != facts["tree"] or [kind_of(value) for value in values] != kinds:
                raise ValueError(f"sample {index} has other values than sample {indices[0]}")
            yield [to_bytes(value) for value in values]

    for number, first in enumerate(range(0, len(indices), part)):
        done, unfinished = folder / f"part-{number:05d}", folder / f"unfinished-{number:05d}"
        if not done.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            write(rows(indices[first : first + part]), unfinished, names)
            unfinished.rename(done)
