"""What a data set's own files are made by (`Maker`) and read through (`Source`), and how makers report and stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

OnProgress = Callable[[float, str], None]
"""Receives how far along something is: a fraction 0..1 and a short message."""

Stop = Callable[[], bool]
"""Called now and then; returns True to stop. `JobStopped` is then raised, and nothing half-made is ever used."""


def silent(fraction: float, message: str) -> None:
    """Ignores progress."""


def never() -> bool:
    """Returns that nothing is to stop."""
    return False


class Maker(Protocol):
    """A module that makes a data set."""

    IDENTITY: dict[str, int | str]
    """Identity of what it makes; a set on disk with a different one is made again."""

    @property
    def make(self) -> Callable[..., None]:
        """The function `make(directory, *, progress, stop)`: puts the set's files under the existing `directory`.

        It also takes `n_train` and `n_test` if the set can have any size.
        """


class Source(Protocol):
    """One split of a data set as it was made, in its stored order."""

    ids: list[str]
    """A name for each sample, such as "train-000123": unique in the split and fit for a file name."""
    labels: NDArray[np.int64]
    """(n,) int64."""

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns images [start, stop) as (n, image_size, image_size, channels) uint8; JPEG files resized and cropped.

        Raises a `SampleError` that names the file of a sample that cannot be read.
        """

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """Returns images [start, stop) as the bytes of JPEG files, unchanged from disk, or of PNG files.

        Raises a `SampleError` that names the file of a sample that cannot be read.
        """
