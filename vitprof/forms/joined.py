"""The bytes of many samples, one after another in a file."""

from collections.abc import Sequence
from pathlib import Path


class JoinedFile:
    """A file that is written, and where each sample ends in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ends = [0]
        self._file = path.open("wb")

    def add(self, data: bytes) -> None:
        """Writes the bytes of the next sample."""
        self._file.write(data)
        self.ends.append(self.ends[-1] + len(data))

    def close(self) -> None:
        self._file.close()


def add_to_each(files: Sequence[JoinedFile], values: Sequence[bytes]) -> None:
    """Writes each value of a sample to its file."""
    for file, data in zip(files, values, strict=True):
        file.add(data)
