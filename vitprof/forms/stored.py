"""The samples of a Dataset, stored.

`convert(dataset, folder, Writer, Reader)` writes them once; `Samples(folder, Reader, transform)` is
a Dataset that reads them.
"""

import ast
import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from vitprof.forms.contract import Names
from vitprof.forms.description import LOCK, Description, description_of, part_of
from vitprof.forms.values import TEXTS, from_bytes

PART = 4096
"""Samples in a part: a folder of its own, so that a conversion goes on where it was ended."""
COMPARED = 256
"""Samples of a part from an earlier attempt that are compared with the dataset's, at the most: a
sixteenth of a full one. All would take as long as to store them again."""
MODES = ("1", "L", "LA", "RGB", "RGBA", "CMYK", "I", "F", "I;16")
"""Of PIL images whose bytes are all that they are: not those with a palette."""


class Encoded(bytes):
    """The bytes of an image file, to be stored as they are, and decoded when they are read."""

    mode = "RGB"


class Samples(Dataset[Any]):
    """Reads samples. `transform` gets the value at the place where that of the Dataset was; None:
    as it was stored.
    """

    def __init__(
        self,
        folder: str | Path,
        reader: Callable[[Path, Names], Any],
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.reader = reader
        self.transform = transform
        description = description_of(self.folder)
        if description is None:
            raise ValueError(f"{folder} holds no stored samples")
        self.description = description
        self.tree = ast.literal_eval(description.tree)
        self.opened: dict[int, Any] = {}
        """What reads the samples of a part, by its number."""
        self.process = 0
        """The process that opened them."""

    def __len__(self) -> int:
        return self.description.n

    def __getitem__(self, index: int) -> Any:
        description = self.description
        if self.process != os.getpid():
            # A worker opens the files itself.
            self.opened = {}
            self.process = os.getpid()
        part, number = divmod(index, description.part)
        if part not in self.opened:
            folder = part_of(self.folder, part)
            self.opened[part] = self.reader(folder, description.names)
        data = self.opened[part].read(number)
        pairs = zip(description.kinds, data, strict=True)
        values = [from_bytes(kind, each) for kind, each in pairs]
        if self.transform is not None:
            values[description.at] = self.transform(values[description.at])
        return rebuilt(self.tree, values)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": {}, "process": 0}


def flattened(sample: Any, values: list[Any]) -> Any:
    """Adds the values in dicts, lists and tuples of a sample to `values`; returns the same with
    their numbers.
    """
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
    """Returns what a value is, as `from_bytes` needs it: "tensor float32 3", "image RGB", "int",
    and so on.
    """
    if isinstance(value, torch.Tensor):
        return f"tensor {str(value.dtype).removeprefix('torch.')} {value.dim()}"
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        name = "array" if isinstance(value, np.ndarray) else "scalar"
        return f"{name} {value.dtype.str} {value.ndim}"
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


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder. Raises `ValueError` where another process stores samples in it."""
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is storing samples in {folder}; wait until it has ended"
            ) from None
        except OSError:
            # some file systems of clusters have no locks
            pass
        yield


def compared_of(n: int) -> range:
    """Returns the numbers of the samples in a part of `n` that are compared, evenly spread."""
    step = -(-n // COMPARED)
    return range(0, n, max(1, step))


def compare(
    part: Path,
    names: Names,
    reader: Callable[[Path, Names], Any],
    chosen: Sequence[int],
    row: Callable[[int], list[bytes]],
) -> None:
    """Compares a spread of a part's samples with the dataset's, which `row` gives as bytes.

    Raises `ValueError` where one is another one now, or cannot be read.
    """
    with readable(part):
        reading = reader(part, names)
    try:
        for number in compared_of(len(chosen)):
            with readable(part):
                values = [bytes(value) for value in reading.read(number)]
            if values != row(chosen[number]):
                raise other_samples(part.parent, f"sample {chosen[number]} has changed since")
    finally:
        reading.close()


@contextlib.contextmanager
def readable(part: Path) -> Iterator[None]:
    """Makes any error of a form's library in the block one that says what to do about a part."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{part} cannot be read ({error}); remove it, and it is stored again"
        ) from error


def other_samples(folder: Path, why: str) -> ValueError:
    """Returns the error to raise where a folder holds other samples than those to store."""
    return ValueError(f"{folder} holds other samples: {why}; choose a new folder, or remove it")


def convert(
    dataset: Any,
    folder: str | Path,
    writer: Callable[[Path, Names], Any],
    reader: Callable[[Path, Names], Any],
    indices: Sequence[int] | None = None,
    at: int = 0,
    part: int = PART,
    what: str = "",
) -> None:
    """Writes the samples of `dataset`: all, or those of `indices`. `at`: the value that `Samples`
    is to transform; `what`: what else was done to them, which must be the same for an earlier
    attempt to go on.

    A part that is there is not written again: a spread of its samples is compared with the
    dataset's. Raises `ValueError` for samples that are not alike, and where `folder` holds other
    ones or another process stores some in it, and `TypeError` for values that cannot be stored.
    """
    folder = Path(folder)
    if indices is None:
        indices = range(len(dataset))
    values: list[Any] = []
    tree = repr(flattened(dataset[indices[0]], values))
    kinds = [kind_of(value) for value in values]
    names = [f"{i}.{'jpg' if kind.startswith('file') else 'bin'}" for i, kind in enumerate(kinds)]
    description = Description(len(indices), part, kinds, names, at, tree, what)

    def row(index: int) -> list[bytes]:
        values: list[Any] = []
        its_tree = repr(flattened(dataset[index], values))
        if its_tree != tree or [kind_of(value) for value in values] != kinds:
            raise ValueError(f"sample {index} has other values than sample {indices[0]}")
        return [to_bytes(value) for value in values]

    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        known = description_of(folder)
        if known is not None and known != description:
            raise other_samples(folder, known.unlike(description))
        description.write(folder)
        for number, first in enumerate(range(0, len(indices), part)):
            chosen = indices[first : first + part]
            done = part_of(folder, number)
            if done.exists():
                compare(done, names, reader, chosen, row)
                continue
            unfinished = folder / f"unfinished-{number:05d}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            writing = writer(unfinished, names)
            try:
                for index in chosen:
                    writing.add(row(index))
                writing.finish()
            finally:
                writing.close()
            unfinished.rename(done)
