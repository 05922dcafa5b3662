"""Samples in files that are mapped into memory: one for each of their values, or a .npy file of
pixels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitprof.forms.contract import Names
from vitprof.forms.joined import JoinedFile, add_to_each

ENDS = "ends.npy"
"""(values, samples + 1) int64: where each sample ends in the file of a value."""


class Writer:
    """Writes a file for each value, and where each sample ends in it."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._ends = folder / ENDS
        self._files = [JoinedFile(folder / name) for name in names]

    def add(self, values: Sequence[bytes]) -> None:
        add_to_each(self._files, values)

    def finish(self) -> None:
        np.save(self._ends, np.array([file.ends for file in self._files], np.int64))
        for file in self._files:
            # An empty file cannot be mapped.
            file.add(b"\0")

    def close(self) -> None:
        for file in self._files:
            file.close()


class Reader:
    """Reads samples from mapped files."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._ends: list[list[int]] = np.load(folder / ENDS, allow_pickle=False).tolist()
        self._maps = [np.memmap(folder / name, np.uint8, "r").data for name in names]

    def __len__(self) -> int:
        return len(self._ends[0]) - 1

    def read(self, number: int) -> Sequence[Any]:
        pairs = zip(self._maps, self._ends, strict=True)
        return [data[ends[number] : ends[number + 1]] for data, ends in pairs]

    def close(self) -> None:
        self._maps = []


class NpyWriter:
    """Writes pixels to a .npy file, some images after others.

    It uses write calls, not a mapping: on a full disk a write call fails with an error, while
    writing to mapped memory kills the process (SIGBUS).
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        """`shape`: that of all images, (n, height, width, channels)."""
        self._file = path.open("wb")
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, header)

    def add(self, images: NDArray[np.uint8]) -> None:
        """Writes the next images."""
        self._file.write(np.ascontiguousarray(images).reshape(-1).data)

    def close(self) -> None:
        self._file.close()


def map_npy(path: Path) -> NDArray[Any]:
    """Returns the array in a .npy file, mapped into memory: pages are read when first used.

    It gives the system no advice (madvise). From a cold cache MADV_RANDOM read 0.05 times as fast
    for rows of 150 kB, since it turns readahead off, and MADV_WILLNEED for each row was no faster
    than no advice. From a warm cache all three were equally fast. Raises `OSError` and
    `ValueError`.
    """
    try:
        # "c" (private), since torch warns about arrays that cannot be written to; nothing is ever
        # written.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OverflowError) as error:
        # NumPy's own message advises to trust the file.
        raise ValueError("it is not an array of numbers, or it is damaged") from error
    if not isinstance(array, np.memmap):
        raise ValueError("it is not a .npy file")
    return array
