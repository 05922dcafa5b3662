"""What the module of a form has: a `Writer` and a `Reader` of samples, whose values are bytes.

Both belong to the process that made them: whoever keeps a reader makes another one after a fork.
They raise `OSError`, `ValueError` and whatever their library raises; the caller says what to do.

Some forms can do more. `find` lists what is in a file of the user's own. Pixels of one shape are
written and read as rows of an array, many at once: by functions of the form's own, or by a method
`read_rows(numbers, rows)` of its reader.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

Names = Sequence[str]
"""The names of a sample's values."""


class Unreadable(ValueError):
    """One sample cannot be read; the others may be."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"sample {number} {why}")
        self.number = number
        self.why = why


class Writer(Protocol):
    """Writes samples into an empty folder."""

    def __init__(self, folder: Path, names: Names) -> None: ...

    def add(self, values: Sequence[bytes]) -> None:
        """Writes the next sample."""

    def finish(self) -> None:
        """Writes what can only be written once all samples are added."""

    def close(self) -> None:
        """Closes what is open. Called last, also after an error."""


class Reader(Protocol):
    """Reads the samples that a `Writer` of the same names has written into a folder."""

    def __init__(self, folder: Path, names: Names) -> None: ...

    def __len__(self) -> int:
        """Returns the number of samples."""

    def read(self, number: int) -> Sequence[Any]:
        """Returns the values of a sample, as bytes or views of them.

        Safe to call from several threads.
        """

    def close(self) -> None:
        """Closes what is open."""


TEST_SPLITS = ("val", "valid", "validation", "test")
"""Usual names of a split that is tested on, the first that a data set has."""
Refuse = Callable[[str], NoReturn]
"""Raises an error that says why a file of the user's cannot be used."""


def counted(n: int, noun: str) -> str:
    """Returns a number of things in words: 1 shard, 12,000 shards."""
    plural = noun if n == 1 else f"{noun}s"
    return f"{n:,} {plural}"


@dataclass(frozen=True)
class Found:
    """The samples in a file of the user's own, as `find(path, options, refuse, gate)` of a form returns
    them.
    """

    samples: Sequence[tuple[str, str, Any]]
    """(split, label, key) of each; the split is "train", one of `TEST_SPLITS`, or "" where the file
    says none."""
    read: Callable[[Any], bytes]
    """Returns the bytes of an image file, by the key of its sample. Raises `OSError`, `ValueError`."""
    notes: Sequence[str] = ()
    """What was left out and why, a line each."""
    opened: Any = None
    """What is closed at the end."""
    in_place: bool = False
    """Whether each key is the path of a file that holds this sample alone: it is used where it is."""
    threads: int = 1
    """Samples to read at the same time where each is a wait."""
